import pytest

from chatmill.app.project import lock_problem

SOUND = """\
schema: '2.0'
stages:
  copy:
    cmd: cp a b
    outs:
    - path: b
      hash: md5
      md5: d41d8cd98f00b204e9800998ecf8427e
      size: 0
"""


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (SOUND, None),
        ("schema: '2.0'\n", None),
        ("", "is empty"),
        ("\0" * 100, "is empty"),
        (f"<<<<<<< HEAD\n{SOUND}", "is not YAML"),
        (f"{SOUND}{{", "is not YAML"),
        (SOUND.replace("2.0", "3.0"), "is not what DVC reads (invalid schema version for dictionary value"),
        (SOUND.replace("cmd", "cmc"), "is not what DVC reads (extra keys not allowed"),
        ("- 1", "is not what DVC reads (expected a dictionary"),
    ],
)
def test_what_is_wrong_with_a_lock_file(text, problem):
    found = lock_problem(text.encode())
    assert found == problem or found.startswith(problem)
