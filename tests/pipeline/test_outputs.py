import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from chatmill.pipeline.outputs import atomic_output, discard_scratch
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


def test_a_folder_replaces_a_file_and_a_file_a_folder(tmp_path):
    output = tmp_path / "train.jsonl"
    output.write_text("one file")
    with atomic_output(output) as place:
        place.mkdir()
        (place / "part").touch()
        assert output.read_text() == "one file"
    assert [file.name for file in output.iterdir()] == ["part"]
    with atomic_output(output) as place:
        place.write_text("again one file")
    assert output.read_text() == "again one file"
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


def test_a_growing_output_that_replaces_a_link_leaves_what_it_led_to(tmp_path):
    (tmp_path / "cached").write_text("1\n")
    for make in ("symlink_to", "hardlink_to"):
        output = tmp_path / make
        getattr(output, make)(tmp_path / "cached")
        with atomic_output(output, grows=True) as place:
            place.write_text("2\n")
        assert output.read_text() == "2\n"
    assert (tmp_path / "cached").read_text() == "1\n"


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_a_growing_output_is_removed_on_an_error(tmp_path, error):
    with pytest.raises(error), atomic_output(tmp_path / "curve", grows=True) as place:
        place.write_text("1\n")
        raise error
    assert not list(tmp_path.iterdir())


def test_without_hard_links_a_growing_output_appears_in_the_end(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError

    monkeypatch.setattr(Path, "hardlink_to", refuse)
    output = tmp_path / "curve"
    with atomic_output(output, grows=True) as place:
        place.write_text("1\n")
        assert not output.exists()
    assert output.read_text() == "1\n"


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


def test_an_output_that_has_been_restored_meanwhile_stays(tmp_path, killed):
    (tmp_path / "curve").unlink()
    (tmp_path / "curve").write_text("1\n")
    discard_scratch(killed)
    assert not killed.exists() and (tmp_path / "curve").exists()


WRITES = {
    "python": (
        "(out / 'a.bin').write_bytes(bytes(100_000))",
        r".cache/\d+/out/a.bin: file too large: after 50,000 bytes of it, ",
    ),
    "numpy": (
        "np.save(out / 'a.npy', np.zeros(100_000))",
        r".cache/\d+/out/a.npy: no space left on device: after 50,000 bytes ",
    ),
    "copy": (
        "shutil.copyfile('big', out / 'b')",
        r".cache/\d+/out/b: file too large: after 50,000 bytes of it, ",
    ),
    "removed": (
        "Path(out, '.x').touch(); Path(out, '.x').unlink(); raise OSError(28, '')",
        r".cache/\d+(/out)?: no space left on ",
    ),
    "rust": (
        "raise ValueError('x: No space left on device (os error 28)')",
        r".cache/\d+(/out)?: no space left on device: ",
    ),
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
