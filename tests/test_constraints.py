"""`.ci/constraints.txt` is one version of each package, which pyproject.toml allows."""

import tomllib

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from support.paths import ROOT

VERSIONS = dict(line.split("==") for line in (ROOT / ".ci/constraints.txt").read_text().splitlines())
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def test_every_package_that_a_test_run_needs_has_a_version_that_pyproject_allows():
    versions = {canonicalize_name(name): version for name, version in VERSIONS.items()}
    needed = [Requirement(line) for line in PROJECT["dependencies"] + PROJECT["optional-dependencies"]["test"]]
    assert [str(one) for one in needed if not one.specifier.contains(versions[canonicalize_name(one.name)])] == []


def test_no_version_is_that_of_one_kind_of_machine():
    assert [name for name, version in VERSIONS.items() if Version(version).local] == []
