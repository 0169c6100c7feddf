from functools import partial
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from chatmill.pipeline.parts import PartsWriter
from chatmill.shards.stripes import join_stripes, stripes_in_turn

LINES = st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"") + b"\n"), max_size=4)


def contents(output):
    """The bytes of a file, or of each file of a folder."""
    return {file.name: file.read_bytes() for file in (output.iterdir() if output.is_dir() else [output])}


@given(st.lists(LINES, max_size=12), st.integers(1, 4), st.integers(1, 60))
def test_stripes_are_joined_to_the_parts_that_one_process_writes(tmp_path_factory, stripes, files, part_bytes):
    folder = tmp_path_factory.mktemp("stripes")
    (folder / "joined").mkdir()
    with PartsWriter(folder / "one", part_bytes) as out:
        for line in (line for stripe in stripes for line in stripe):
            out.write(line)
    written = [folder / f"written-{number}" for number in range(files)]
    starts = []
    for number, file in enumerate(written):
        own = [b"".join(stripe) for stripe in stripes[number::files]]
        file.write_bytes(b"".join(own))
        starts.append([*accumulate(map(len, own), initial=0)][: len(own)])
    join_stripes(partial(stripes_in_turn, written, starts), folder / "joined" / "one", part_bytes, map)
    assert contents(folder / "joined" / "one") == contents(folder / "one")
    assert not [file for file in written if file.exists() and file.stat().st_size]
