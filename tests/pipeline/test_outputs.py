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
from chatmill.pipeline.user_errors import error_line
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
