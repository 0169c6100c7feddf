"""dvc.yaml, params.yaml, the stage scripts and the README must agree."""

import ast
import importlib
import importlib.metadata
import inspect
import re
import shlex
import subprocess
import sys
from contextlib import chdir
from functools import cache, reduce
from operator import getitem
from pathlib import Path

import pytest
import yaml
from dvc.fs import localfs
from dvc.repo import Repo
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from chatmill.pipeline.params_file import SCHEMA_FILE, THREADS, read_params
from chatmill.pipeline.schema import schema_text
from chatmill.pipeline.signatures import MAX_POSITIONAL, signature_of
from chatmill.report.summary import plot_tables
from chatmill.training.training_loop import HEADER
from support.paths import ROOT, SOURCE
from support.project import PLUMBING

PARAMS = read_params(ROOT / "params.yaml")
MAINS = {file.stem: importlib.import_module(file.stem).main for file in SOURCE.glob("*.py")}
SIGNATURES = {name: signature_of(main) for name, main in MAINS.items()}
TYPES = sorted(file.stem for file in (SOURCE / "chatmill/tokenizer/types").glob("[!_]*.py"))


def flat(stage):
    return stage["do"] if "foreach" in stage else stage


PIPELINE = yaml.safe_load((ROOT / "dvc.yaml").read_text())
STAGES = {name: flat(stage) for name, stage in PIPELINE["stages"].items()}
SUMMARY = "data/metrics/summary.json"
MOST_IN_VAIN = 0.022  # of all pairs of a module and a stage
MOST_IN_VAIN_OF_TRAINING = 0.015  # of the modules
each_stage = pytest.mark.parametrize("name", STAGES)


def test_no_page_about_code_reruns_a_stage_and_that_of_a_folder_for_files_says_what_it_is_for():
    with Repo(str(ROOT)) as repo:
        assert not [path for path in repo.dvcignore.find(localfs, str(SOURCE)) if path.endswith(".md")]
        assert not repo.config["core"].get("autostage")  # what to stage for a commit is everybody's own choice
        for folder in (ROOT / "data/raw/external").iterdir():
            _, parameter, _ = (folder / "README.md").read_text().split("`")
            reduce(getitem, parameter.split("."), PARAMS)  # it exists
            assert [*repo.dvcignore.find(localfs, str(folder))] == [str(folder / ".gitkeep")]


def imported_names(tree):
    """The modules that code imports, and the names in them; also imports at run time by a constant name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            yield from (argument.value for argument in node.args if isinstance(argument, ast.Constant))


@cache
def imported_files(file):
    """The files under stages/ that `file` imports, without empty `__init__.py` files.

    A module that the `__getattr__` of a package loads counts for the file that uses the attribute, not for the package.
    """
    tree, files = ast.parse(file.read_text()), set()
    if file.name == "__init__.py":
        tree.body = [node for node in tree.body if getattr(node, "name", "") != "__getattr__"]
    for name in imported_names(tree):
        path = SOURCE / name.replace(".", "/")
        package = path.parent / "__init__.py"
        if not path.exists() and not path.with_suffix(".py").exists() and package.is_file():
            loaded = [n for n in ast.parse(package.read_text()).body if getattr(n, "name", "") == "__getattr__"]
            names = imported_names(ast.Module(loaded, []))
            files.update(SOURCE / f"{n.replace('.', '/')}.py" for n in names if "." in n)
        found = [path.with_suffix(".py"), *(parent / "__init__.py" for parent in [path, *path.parents])]
        files.update(f for f in found if f.is_file() and f.is_relative_to(SOURCE) and f.read_text())
    return files


def all_code(*scripts):
    """The scripts and every file under stages/ that they import, at any depth."""
    files, waiting = set(), list(scripts)
    while waiting:
        file = waiting.pop()
        if file not in files and str(file.relative_to(SOURCE)) not in PLUMBING:
            files.add(file)
            waiting += imported_files(file)
    return {str(file.relative_to(ROOT)) for file in files}


def needed_code(name):
    """All code that a stage needs, with the chosen tokenizer type under its name in dvc.yaml."""
    types = SOURCE / "chatmill/tokenizer/types"
    if name != "train_tokenizer":
        return all_code(SOURCE / f"{name}.py")
    files = [types / f"{type}.py" for type in TYPES]
    chosen = str((types / "${train_tokenizer.type}.py").relative_to(ROOT))
    return all_code(SOURCE / f"{name}.py", *files) - {str(file.relative_to(ROOT)) for file in files} | {chosen}


def declared_code(name):
    """The script, files and folders of the library that dvc.yaml lists for a stage."""
    return [path for path in STAGES[name]["deps"] if path.startswith("stages/")]


def covered_code(name):
    """Every non-empty code file whose edit reruns a stage."""
    declared = [ROOT / path for path in declared_code(name)]
    folders = {file for folder in declared for file in folder.rglob("*.py") if file.read_text()}
    return {str(file.relative_to(ROOT)) for file in folders | {path for path in declared if path.suffix == ".py"}}


def tracked(entries):
    """The paths of a list of deps, outs or metrics, where an entry may be `path: {options}`."""
    return [entry if isinstance(entry, str) else next(iter(entry)) for entry in entries]


def outputs(stage):
    return tracked(stage.get("outs", []) + stage.get("metrics", []))


@each_stage
def test_all_code_that_a_stage_imports_lies_in_what_it_depends_on(name):
    assert needed_code(name) <= covered_code(name)


@each_stage
def test_a_stage_depends_on_no_folder_that_it_imports_nothing_of(name):
    needed = needed_code(name)
    assert [
        path for path in declared_code(name) if not any(f == path or f.startswith(f"{path}/") for f in needed)
    ] == []


def test_folders_rerun_few_stages_in_vain():
    """A limit on the files in a stage's folders that it does not import: their edits rerun it without need."""
    modules = sum(bool(file.read_text()) for file in (SOURCE / "chatmill").rglob("*.py"))
    in_vain = {name: len(covered_code(name) - needed_code(name)) for name in STAGES}
    assert sum(in_vain.values()) <= MOST_IN_VAIN * modules * len(STAGES)
    assert in_vain["train_model"] <= MOST_IN_VAIN_OF_TRAINING * modules


def test_only_three_imports_have_names_that_are_computed():
    """The tokenizer type is a separate dependency, no stage runs a command, and a check changes no output."""
    computed = {
        str(file.relative_to(SOURCE))
        for file in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call) and ast.unparse(node.func).endswith(("import_module", "__import__"))
        if not isinstance(node.args[0], ast.Constant)
    }
    assert computed == {f"chatmill/{name}.py" for name in ("tokenizer/type_registry", "app/cli", "pipeline/schema")}


@each_stage
def test_command_names_exactly_the_tracked_files(name):
    stage = STAGES[name]
    command, script, *words = shlex.split(stage["cmd"].removeprefix("exec "))
    data = [path for path in stage["deps"] if not path.startswith(("stages/", "${item."))]
    assert (stage["cmd"][:5], command, script) == ("exec ", "python", f"stages/{name}.py")
    assert sorted(word for word in words if not word.startswith("--")) == sorted(data + outputs(stage))


@each_stage
def test_the_shell_sees_nothing_of_params_but_quoted_names_of_entries(name):
    """The path may hold anything, so it is no part of the command; a name with an apostrophe reaches the stage."""
    assert "$" not in re.sub(r'"[\w/.]+\$\{key\}[\w.]+"', "", STAGES[name]["cmd"])
    inputs = [path for path in STAGES[name]["deps"] if "$" in path and "types/" not in path]
    assert inputs == (["${item.path}"] if SIGNATURES[name].foreach else [])


@each_stage
def test_main_takes_exactly_those_files_and_names_its_outputs(name):
    signature, words = SIGNATURES[name], shlex.split(STAGES[name]["cmd"])[3:]
    if len(signature.files) > MAX_POSITIONAL:
        named = dict(zip(words[::2], words[1::2], strict=True))
        assert list(named) == [f"--{file.replace('_', '-')}" for file in signature.files]
        words = list(named.values())
    assert len(signature.files) == len(words)
    written = {word for is_output, word in zip(signature.files.values(), words, strict=True) if is_output}
    assert written == set(outputs(STAGES[name]))


@each_stage
def test_main_takes_the_parameters_of_its_section(name):
    signature, section = SIGNATURES[name], PARAMS.get(name, {})
    fields = {key: field for key, field in signature.model.model_fields.items() if key != THREADS}
    required = {key for key, field in fields.items() if field.is_required()}
    for found in section.values() if signature.foreach else [section]:
        keys = set(found) - ({*TYPES} if name == "train_tokenizer" else set())
        assert required <= keys <= set(fields)


def test_the_schema_of_params_is_that_of_the_signatures():
    """`python -m chatmill.pipeline.schema` writes it."""
    assert (SOURCE / SCHEMA_FILE).read_text() == schema_text()


def test_plumbing_is_no_dependency():
    folders = {path for stage in STAGES for path in declared_code(stage)}
    assert not [file for file in PLUMBING for path in folders if f"stages/{file}".startswith(path)]


@each_stage
def test_tracks_its_own_section_and_those_it_reads(name):
    own = {"prepare": ["prepare.${key}"]}.get(name, [name])
    if name == "train_tokenizer":
        own = [f"train_tokenizer.{key}" for key in (*SIGNATURES[name].model.model_fields, "${train_tokenizer.type}")]
    own += [key for key in SIGNATURES[name].model.model_fields if key == THREADS]
    others = [f"{section}.{key}" for key, section in SIGNATURES[name].other_keys.items()]
    assert STAGES[name]["params"] == others + own + list(SIGNATURES[name].other_sections)


def test_every_script_is_a_stage_and_every_tokenizer_type_has_its_settings_in_params():
    assert set(MAINS) == set(STAGES)
    assert set(TYPES) == set(PARAMS["train_tokenizer"]) - set(SIGNATURES["train_tokenizer"].model.model_fields)


@each_stage
def test_described_alike_everywhere(name):
    description = STAGES[name]["desc"]
    assert inspect.getdoc(importlib.import_module(name)).splitlines()[0] == description
    assert f"`{name}` | {description} |" in (ROOT / "stages/README.md").read_text()


def dependencies(name="chatmill", extras=("test", "hf", "fast")):
    """The installed distributions that the project needs, also indirectly."""
    found, waiting = set(), [(name, frozenset(extras))]
    while waiting:
        entry = waiting.pop()
        if entry in found:
            continue
        try:
            required = importlib.metadata.requires(entry[0]) or []
        except importlib.metadata.PackageNotFoundError:
            continue
        found.add(entry)
        for requirement in map(Requirement, required):
            environments = [{"extra": extra} for extra in (*entry[1], "")]
            if not requirement.marker or any(map(requirement.marker.evaluate, environments)):
                waiting.append((canonicalize_name(requirement.name), frozenset(requirement.extras)))
    return {name for name, _ in found}


def test_no_script_or_package_has_the_name_of_a_module_that_the_project_needs():
    names = {path.stem for path in SOURCE.iterdir() if path.suffix in ("", ".py")} - {"__pycache__"}
    needed = dependencies()
    owners = importlib.metadata.packages_distributions()
    modules = {module for module, of in owners.items() if {*map(canonicalize_name, of)} & needed} - {"chatmill"}
    assert {"torch", "yaml", "pydantic_core", "starlette"} <= modules
    assert not names & (set(sys.stdlib_module_names) | modules)


def options():
    """The options of the outputs that have some, by path."""
    entries = [entry for stage in STAGES.values() for kind in ("outs", "metrics") for entry in stage.get(kind, [])]
    return {path: given for entry in entries if isinstance(entry, dict) for path, given in entry.items()}


def test_the_summary_alone_is_kept_out_of_the_cache():
    """It is in git, so that runs can be compared without a cache; uncached outputs are not pushed. Times are not."""
    metrics = [{SUMMARY: {"cache": False}}, "data/metrics/speeds.json"]
    assert [entry for stage in STAGES.values() for entry in stage.get("metrics", [])] == metrics
    assert options() == {SUMMARY: {"cache": False}}


def test_git_has_the_summary_and_ignores_every_other_output():
    paths = [path.replace("${key}", "some") for stage in STAGES.values() for path in outputs(stage)]
    command = ["git", "check-ignore", "--no-index", *paths]
    ignored = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.splitlines()
    assert {*paths} - {*ignored} == {SUMMARY}


def test_dvc_finds_data_that_is_added_to_the_inputs(tmp_path):
    """It does not look into a folder that git ignores as a whole, and neither pushes nor pulls what is there."""
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    (tmp_path / ".gitignore").write_bytes((ROOT / ".gitignore").read_bytes())
    added = tmp_path / "data/raw/external/initial/model.bin"
    added.parent.mkdir(parents=True)
    added.write_text("weights")
    with chdir(tmp_path):
        Repo.init(".").close()
        with Repo(".") as repo:
            repo.add(str(added))
        with Repo(".") as repo:
            assert [out.fs_path for out in repo.index.outs] == [str(added)]


def test_every_artifact_is_an_output():
    written = {path for stage in STAGES.values() for path in outputs(stage)}
    assert {artifact["path"] for artifact in PIPELINE["artifacts"].values()} <= written


def test_every_plot_is_drawn_from_columns_that_a_stage_writes():
    written = {path for stage in STAGES.values() for path in outputs(stage)}
    tables = {
        "data/metrics/train.tsv": HEADER,
        **{f"data/report/{name}": text for name, text in plot_tables({}, {}, {}).items()},
    }
    for plot in [content for entry in PIPELINE["plots"] for content in entry.values()]:
        for file, columns in plot["y"].items():
            x = plot["x"] if isinstance(plot["x"], str) else plot["x"][file]
            assert {x, *([columns] if isinstance(columns, str) else columns)} <= {*tables[file].strip().split("\t")}
            assert {file, str(Path(file).parent)} & written


def test_top_level_holds_what_the_readme_names_and_nothing_else():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False).stdout
    top = {Path(line).parts[0] for line in listed.splitlines()}
    files = {"dvc.yaml", "params.yaml", "dvc.lock", "pyproject.toml", "README.md", "LICENSE"}
    assert {name for name in top if not name.startswith(".")} == files | {"stages", "data", "tests"}


def test_no_test_module_imports_another():
    """Shared helpers are in tests/support."""
    imported = {name for file in (ROOT / "tests").rglob("*.py") for name in imported_names(ast.parse(file.read_text()))}
    assert not [name for name in imported if re.search(r"\b(test_|conftest\b)", name)]


def test_tests_lie_in_folders_named_as_the_packages_they_test():
    folders = {file.parent.relative_to(ROOT / "tests") for file in (ROOT / "tests").rglob("*.py")} - {Path()}
    others = {folder for folder in folders if not (SOURCE / "chatmill" / folder / "__init__.py").exists()}
    assert others == {Path("support"), Path("stages"), Path("benchmarks")}


@pytest.mark.slow
@pytest.mark.parametrize(
    "steps",
    [
        [({"torch"}, {"export_tokenizer", "export_gguf", "train_model", "train_soft_tokenizer", "evaluate"})],
        [({"onnxruntime"}, {"evaluate", "benchmark"}), ({"dvc", "transformers"}, set())],
    ],
)
def test_only_stages_that_need_it_import(steps):
    """A process imports all stages but the users of some modules, and has not these modules; then all but others."""
    code = "import sys"
    for modules, users in steps:
        code += f"\nimport {', '.join(sorted(set(STAGES) - users))}\nprint({modules} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], cwd=SOURCE, capture_output=True, text=True, check=True)
    assert result.stdout == "set()\n" * len(steps)
