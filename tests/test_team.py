"""Two people share runs as stages/README.md says: a bare repository, storage, experiments, a merge.

The storage is a folder, and with the extra `peers` also a server of S3.
"""

import subprocess
from contextlib import contextmanager

import pytest

from support.project import Project

pytestmark = pytest.mark.slow
CONFLICTS = ("dvc.lock", "data/metrics/summary.json")


class Member(Project):
    """A member's clone of the project."""

    def git(self, *arguments, check=True):
        """The output of git, with a name for commits."""
        command = ["git", "-c", "user.name=member", "-c", "user.email=member@localhost", *arguments]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout.strip()

    def commit(self, message):
        self.git("commit", "-qam", message)

    def is_up_to_date(self):
        return "up to date" in self.dvc("status") and self.repro() == []


@contextmanager
def s3_server():
    """The address of a server of S3 with the bucket `bucket`."""
    pytest.importorskip("dvc_s3")
    boto3 = pytest.importorskip("boto3")
    server = pytest.importorskip("moto.server").ThreadedMotoServer(port=0, verbose=False)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {
            "ACCESS_KEY_ID": "me",
            "SECRET_ACCESS_KEY": "secret",
            "DEFAULT_REGION": "us-east-1",
        }.items():
            patch.setenv(f"AWS_{name}", value)
        server.start()
        host, port = server.get_host_and_port()
        address = f"http://{host.replace('0.0.0.0', '127.0.0.1')}:{port}"
        boto3.client("s3", endpoint_url=address).create_bucket(Bucket="bucket")
        yield address
        server.stop()


@pytest.fixture(scope="module", params=["folder", "s3"])
def storage(request, tmp_path_factory):
    """The arguments of `dvc remote add` and `dvc remote modify`."""
    if request.param == "folder":
        yield str(tmp_path_factory.mktemp("storage")), ()
    else:
        with s3_server() as address:
            yield "s3://bucket/chatmill", ("endpointurl", address)


@pytest.fixture(scope="module")
def team(git_project, storage, tmp_path_factory):
    """Two clones of one repository, the second without any data."""
    folder = tmp_path_factory.mktemp("team")
    first = Member(git_project.copy(folder / "first").folder)
    first.git("init", "-q", "--bare", str(folder / "shared.git"))
    first.git("remote", "add", "origin", str(folder / "shared.git"))
    address, options = storage
    first.dvc("remote", "add", "-d", "storage", address)
    if options:
        first.dvc("remote", "modify", "storage", *options)
    first.commit("Use the team's storage")
    first.git("push", "-qu", "origin", "HEAD")
    first.dvc("push")
    first.git("clone", "-q", "-b", first.git("branch", "--show-current"), str(folder / "shared.git"), "../second")
    return first, Member(folder / "second")


def report(member):
    return (member.folder / "data/report/index.html").read_text(encoding="utf-8")


def test_a_run_that_was_pushed_is_pulled_and_nothing_runs_again(team):
    first, second = team
    assert not (second.folder / "data/model").exists()
    second.dvc("pull")
    assert second.is_up_to_date()
    assert report(second) == report(first)


def test_an_experiment_is_pushed_pulled_and_applied(team):
    first, second = team
    second.dvc("pull")
    first.dvc("exp", "run", "--name", "another-sample", "-S", "report.sample=Quite another sample.")
    first.git("checkout", "-q", ".")
    first.dvc("checkout")
    first.dvc("exp", "push", "origin", "another-sample")
    assert "another-sample" in second.dvc("exp", "list", "origin")
    second.dvc("exp", "pull", "origin", "another-sample")
    second.dvc("exp", "apply", "another-sample")
    assert second.is_up_to_date()
    assert "Quite another sample." in second.folder.joinpath("params.yaml").read_text()
    assert report(second) != report(first)
    second.git("checkout", "-q", ".")
    second.dvc("checkout")
    assert second.is_up_to_date()


def test_of_two_branches_that_ran_other_stages_little_runs_again_after_a_merge(team):
    first, second = team
    second.dvc("pull")
    first.edit({"report.sample": "The first one's sample."})
    assert first.repro() == ["report"]
    first.commit("Another sample")
    first.git("push", "-q")
    second.edit({"benchmark.new_tokens": 3})
    assert second.repro() == ["benchmark", "report"]
    second.commit("Longer answers in the benchmark")
    second.git("pull", "-q", "--no-rebase", check=False)
    conflicts = set(second.git("diff", "--name-only", "--diff-filter=U").splitlines())
    assert "dvc.lock" in conflicts <= {*CONFLICTS}
    second.git("checkout", "--ours", *conflicts)
    second.git("add", *conflicts)
    second.git("commit", "-qm", "Merge")
    assert second.repro() == ["report"]
    text = (second.folder / "params.yaml").read_text()
    assert "The first one's sample." in text and "new_tokens: 3" in text
    assert second.is_up_to_date()


def test_what_a_colleague_has_run_is_fetched_and_not_run(team):
    first, second = team
    second.dvc("pull")
    for member in team:
        member.edit({"encode.template": "markers"})
    assert "encode" in first.repro()
    first.dvc("push", "--run-cache")
    lines = second.dvc("repro", "--pull", "encode").splitlines()
    assert not [line for line in lines if line.startswith("Running stage")]
    assert (second.folder / "data/tokens").is_dir()
