import shlex
import shutil
import subprocess

import pytest

from chatmill.app.cli import main
from chatmill.app.commands.completion import SHELLS

COMPLETE_IN_BASH = """
source {script}
COMP_WORDS=({words}) COMP_CWORD={last}
"$(complete -p chatmill | sed 's/.*-F \\([^ ]*\\).*/\\1/')" chatmill
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """The files of all scripts, by shell."""
    folder = tmp_path_factory.mktemp("completion")
    with pytest.MonkeyPatch.context() as patch:
        for shell in SHELLS:
            with (folder / shell).open("w") as stream:
                patch.setattr("sys.stdout", stream)
                assert main(["completion", shell]) == 0
    return {shell: folder / shell for shell in SHELLS}


def in_shell(shell, *arguments, **options):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    result = subprocess.run([shell, *map(str, arguments)], capture_output=True, text=True, check=True, **options)
    assert result.stderr == ""
    return result.stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_reads_its_script(shell, scripts):
    assert in_shell(shell, "-n", scripts[shell]) == ""


def completed(scripts, folder, line):
    words = shlex.split(line) + ([""] if line.endswith(" ") else [])
    text = COMPLETE_IN_BASH.format(script=scripts["bash"], words=shlex.join(words), last=len(words) - 1)
    return in_shell("bash", "--norc", "-c", text, cwd=folder).split()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("chatmill comp", ["completion", "compare"]),
        ("chatmill chat --prompt-", ["--prompt-file"]),
        ("chatmill completion ", ["bash", "zsh", "fish"]),
        ("chatmill chat --model mo", ["model.bin", "models"]),
        ("chatmill compare mo", ["model.bin", "models"]),
        ("chatmill verify --tok", []),
    ],
)
def test_bash_completes_commands_options_choices_and_files(line, expected, scripts, tmp_path):
    (tmp_path / "model.bin").touch()
    (tmp_path / "models").mkdir()
    assert sorted(completed(scripts, tmp_path, line)) == sorted(expected)
