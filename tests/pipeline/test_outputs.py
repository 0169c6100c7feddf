import os
import re
import subprocess
import sys

import pytest

from chatmill.pipeline.outputs import atomic_output
from support.paths import SOURCE


def test_an_atomic_output_replaces_a_folder_at_once(tmp_path):
    output = tmp_path / "model"
    output.mkdir()
    (output / "old").touch()
    with atomic_output(output) as place:
        place.mkdir()
        (place / "new").touch()
        assert [file.name for file in output.iterdir()] == ["old"]
    assert [file.name for file in output.iterdir()] == ["new"]
    assert list(tmp_path.iterdir()) == [output]


def test_a_growing_output_is_read_while_it_is_written_and_whole_in_the_end(tmp_path):
    output = tmp_path / "curve"
    output.write_text("of an earlier run, and longer")
    with atomic_output(output, grows=True) as place:
        assert output.read_text() == ""
        with place.open("w") as file:
            file.write("1\n")
        with place.open("a") as file:
            file.write("2\n")
        assert output.read_text() == "1\n2\n"
    assert list(tmp_path.iterdir()) == [output] and output.read_text() == "1\n2\n"


@pytest.fixture
def killed(tmp_path):
    """The scratch folder of a process that was killed while its output grew."""
    script = """
import os, signal
from pathlib import Path
from chatmill.pipeline.outputs import atomic_output
with atomic_output(Path("curve"), grows=True) as place, atomic_output(Path("model")) as model:
    place.write_text("1\\n")
    model.write_text("half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(SOURCE)}, check=False
    )
    (folder,) = (tmp_path / ".cache").iterdir()
    assert (tmp_path / "curve").read_text() == "1\n"
    return folder


def test_what_a_killed_process_left_of_a_growing_output_is_removed_by_the_next_stage_beside_it(tmp_path, killed):
    (tmp_path / "model").write_text("an earlier one")
    with atomic_output(tmp_path / "other") as place:
        assert not (tmp_path / "curve").exists() and not killed.exists()
        place.touch()
    assert sorted(file.name for file in tmp_path.iterdir()) == ["model", "other"]


WRITES = {
    "python": ("(out / 'a.bin').write_bytes(bytes(100_000))", r"out: file too large: "),
    "numpy": ("np.save(out / 'a.npy', np.zeros(100_000))", r"out: no space left on device: "),
    "copy": ("shutil.copyfile('big', out / 'b')", r".cache/\d+/out/b: file too large: "),
    "removed": ("Path(out, '.x').touch(); Path(out, '.x').unlink(); raise OSError(28, '')", r"out: no space left on "),
    "rust": ("raise ValueError('x: No space left on device (os error 28)')", r"out: no space left on device: "),
}


@pytest.mark.parametrize(("code", "expected"), WRITES.values(), ids=list(WRITES))
def test_a_full_disk_is_named_with_the_file_and_what_is_free(tmp_path, code, expected):
    """A limit on the size of files stands for a full disk, since their errors differ in the number alone."""
    script = f"""
import resource, shutil, sys
from pathlib import Path
import numpy as np
from chatmill.pipeline.outputs import atomic_output, explain_full_disk
from chatmill.pipeline.processes import error_line
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
try:
    with atomic_output(Path("out")) as out, explain_full_disk([Path("out")]):
        out.mkdir()
        {code}
except OSError as error:
    print(error_line(error))
"""
    (tmp_path / "big").write_bytes(bytes(100_000))
    command, environment = [sys.executable, "-c", script], os.environ | {"PYTHONPATH": str(SOURCE)}
    result = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert re.match(expected, result.stdout), result.stdout
    assert re.search(r" [\d,]+ bytes are free now: free more space, and run the stage again$", result.stdout)
