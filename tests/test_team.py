"""Two people share runs as stages/README.md says: a bare repository, storage, experiments, a merge.

The storage is a folder, and where `sshd` is installed also one of ssh.
"""

import getpass
import os
import shutil
import socket
import subprocess
from contextlib import contextmanager
from pathlib import Path
from time import monotonic, sleep

import pytest

from support.project import Project

pytestmark = pytest.mark.slow
CONFLICTS = ("dvc.lock", "data/metrics/summary.json")


def wait_until(condition):
    end = monotonic() + 60
    while not condition():
        assert monotonic() < end, "the condition did not become true"
        sleep(0.01)


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

    def has_nothing_to_do(self):
        """Whether `dvc repro` runs no stage, and fetches or links no output."""
        return "Data and pipelines are up to date." in self.dvc("repro")


@contextmanager
def ssh_server(folder):
    """The port of a server of ssh that only the key `folder/key` opens."""
    pytest.importorskip("dvc_ssh")
    command = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if command is None:
        pytest.skip("sshd is not installed")
    if os.geteuid() == 0:  # then sshd needs this folder, as its service makes it
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (folder / "config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {folder}/host_key\nAuthorizedKeysFile {folder}/key.pub\n"
        "AuthenticationMethods publickey\nStrictModes no\nPidFile none\nSubsystem sftp internal-sftp\n"
    )
    with subprocess.Popen([command, "-D", "-f", folder / "config", "-E", folder / "log"]) as server:
        try:
            with socket.socket() as client:
                wait_until(lambda: client.connect_ex(("127.0.0.1", port)) == 0)
            yield port
        finally:
            server.terminate()


@pytest.fixture(scope="module", params=["folder", "ssh"])
def storage(request, tmp_path_factory):
    """The address of the storage, and the options of the team and of each member for it."""
    folder = tmp_path_factory.mktemp("storage")
    if request.param == "folder":
        yield str(folder), {}, {}
    else:
        with ssh_server(folder) as port:
            own = {"user": getpass.getuser(), "keyfile": str(folder / "key")}
            yield f"ssh://127.0.0.1:{port}{folder}/runs", {}, own


@pytest.fixture(scope="module")
def team(git_project, storage, tmp_path_factory):
    """Two clones of one repository; the second has pulled what the first has run."""
    folder = tmp_path_factory.mktemp("team")
    address, options, own_options = storage
    first, second = Member(git_project.copy(folder / "first").folder), Member(folder / "second")
    first.git("init", "-q", "--bare", str(folder / "shared.git"))
    first.git("remote", "add", "origin", str(folder / "shared.git"))
    first.dvc("remote", "add", "-d", "storage", address)
    for name, value in options.items():
        first.dvc("remote", "modify", "storage", name, value)
    first.commit("Use the team's storage")
    first.git("push", "-qu", "origin", "HEAD")
    first.git("clone", "-q", "-b", first.git("branch", "--show-current"), str(folder / "shared.git"), "../second")
    for member in (first, second):
        for name, value in own_options.items():
            member.dvc("remote", "modify", "--local", "storage", name, value)
    first.dvc("push")
    assert not (second.folder / "data/model").exists()
    second.dvc("pull")
    return first, second


def report(member):
    return (member.folder / "data/report/index.html").read_text(encoding="utf-8")


def test_a_run_that_was_pushed_is_pulled_and_nothing_runs_again(team):
    first, second = team
    assert second.has_nothing_to_do()
    assert report(second) == report(first)


def test_an_experiment_is_pushed_pulled_and_applied(team):
    first, second = team
    first.dvc("exp", "run", "--name", "another-sample", "-S", "report.sample=Quite another sample.")
    first.git("checkout", "-q", ".")
    first.dvc("checkout")
    first.dvc("exp", "push", "origin", "another-sample")
    assert "another-sample" in second.dvc("exp", "list", "origin")
    second.dvc("exp", "pull", "origin", "another-sample")
    second.dvc("exp", "apply", "another-sample")
    assert second.has_nothing_to_do()
    assert "Quite another sample." in second.folder.joinpath("params.yaml").read_text()
    assert report(second) != report(first)
    second.git("checkout", "-q", ".")
    second.dvc("checkout")
    assert second.has_nothing_to_do()


def test_of_two_branches_that_ran_other_stages_little_runs_again_after_a_merge(team):
    first, second = team
    first.edit({"benchmark.new_tokens": 3})
    assert first.repro() == ["benchmark", "report"]
    first.commit("Longer answers in the benchmark")
    first.git("push", "-q")
    first.dvc("push", "--run-cache")
    second.edit({"report.sample": "The second one's sample."})
    assert second.repro() == ["report"]
    second.commit("Another sample")
    second.git("pull", "-q", "--no-rebase", check=False)
    conflicts = set(second.git("diff", "--name-only", "--diff-filter=U").splitlines())
    assert "dvc.lock" in conflicts <= {*CONFLICTS}
    second.git("checkout", "--ours", *conflicts)
    second.git("add", *conflicts)
    assert second.repro("--pull") == ["report"]
    second.commit("Merge")
    text = (second.folder / "params.yaml").read_text()
    assert "The second one's sample." in text and "new_tokens: 3" in text
    assert second.has_nothing_to_do()
    second.git("push", "-q")
    second.dvc("push")
    first.git("pull", "-q")
    first.dvc("pull")
    assert first.has_nothing_to_do()


def test_what_a_colleague_has_run_is_fetched_and_not_run_and_the_teams_run_comes_back(team):
    first, second = team
    for member in team:
        member.edit({"encode.template": "markers"})
    assert first.repro("encode") == ["encode"]
    first.dvc("push", "--run-cache")
    assert second.repro("--pull", "encode") == []
    assert (second.folder / "data/tokens").is_dir()
    second.git("checkout", "-q", "HEAD", "params.yaml", "dvc.lock", "data/metrics")
    second.dvc("pull")
    assert second.has_nothing_to_do()
