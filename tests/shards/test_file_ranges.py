"""Shards are whole lines of a file."""

from hypothesis import given
from hypothesis import strategies as st

from chatmill.shards.file_ranges import shards_of


@given(st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"")), max_size=20), st.integers(1, 30))
def test_shards_have_each_line_once_and_in_order(tmp_path_factory, lines, size):
    file = tmp_path_factory.getbasetemp() / "lines"
    file.write_bytes(b"\n".join(lines))
    assert b"".join(line for shard in shards_of(file, size) for line in shard.lines()) == file.read_bytes()
    assert all(end - start <= size for _, start, end in shards_of(file, size))
