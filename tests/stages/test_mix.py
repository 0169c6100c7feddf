import hashlib
import json
import re
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mix
from chatmill.conversation import Message, Record, render
from chatmill.datasets import mixing, near_duplicates, split
from chatmill.datasets.split import assign_split, on_side, question_group
from chatmill.pipeline.manifest import write_file_manifest
from chatmill.record_files import read_records
from support.paths import SOURCE

SHARES = {"validation_share": 0.2, "test_share": 0.2}
GROUP = {name: next(f"a/{i}" for i in range(99) if assign_split(f"a/{i}", **SHARES) == name) for name in mix.SPLITS}


def pair(question, answer="Yes."):
    return render([Message.from_text("user", question), Message.from_text("assistant", answer)])


def write(folder, sources, rejects=()):
    """Prepared files: {source: [(split or group, text), …]}."""
    folder.mkdir(exist_ok=True)
    for source, records in sources.items():
        lines = [Record(source, GROUP.get(group, group), text).to_json() for group, text in records]
        (folder / f"{source}.jsonl").write_text("".join(lines), encoding="utf-8")
        (folder / f"{source}.rejects.jsonl").touch()
        counts = {"conversations": {"read": len(lines) + len(rejects), "rejected": Counter(rejects)}}
        write_file_manifest(folder / f"{source}.manifest.json", [], kind="conversations", counts=counts)


def run(folder, sources, near_duplicates=False, **shares):
    outputs = {name: folder / f"{name}.jsonl" for name in ("train", "validation", "test", "manifest", "metrics")}
    outputs["manifest"] = folder / "manifest.json"
    mix.main(
        folder / "prepared", *outputs.values(), prepare=sources, near_duplicates=near_duplicates, **SHARES | shares
    )
    metrics = json.loads(outputs.pop("metrics").read_text())
    outputs.pop("manifest")
    return {name: [record.text for record in read_records(file)] for name, file in outputs.items()}, metrics


def mixed(tmp_path, sources, scope=None, **options):
    write(tmp_path / "prepared", sources)
    return run(tmp_path, {source: {"near_duplicates": scope} for source in sources}, **options)


FILLED = [(name, pair(f"filler of {name}")) for name in mix.SPLITS]


def test_records_land_on_the_side_of_their_group_unchanged(tmp_path):
    texts, metrics = mixed(tmp_path, {"a": FILLED})
    assert texts == {name: [pair(f"filler of {name}")] for name in mix.SPLITS}
    assert metrics["conversations"] == {"test": 1, "validation": 1, "train": 1}
    assert metrics["bytes"] == {name: len(pair(f"filler of {name}").encode()) for name in mix.SPLITS}


def test_the_copy_that_is_most_held_out_wins(tmp_path):
    copies = [("train", pair("é")), ("validation", pair("é")), ("train", pair("é")), ("test", pair("é"))]
    texts, metrics = mixed(tmp_path, {"a": FILLED + copies, "b": [("train", pair("é"))]})
    assert [pair("é") in texts[name] for name in mix.SPLITS] == [True, False, False]
    assert (metrics["leaked"], metrics["duplicates"]) == (3, 1)


FLAGS = [[None, False], None, [False, None], [True, False], [True, None]]  # of a user and an assistant


@pytest.mark.parametrize(("flags", "kept"), [(FLAGS[:4], None), (FLAGS, [True, None]), (FLAGS[2:3] * 2, [False, None])])
def test_of_copies_on_one_side_the_first_with_the_most_trained_messages_is_kept(tmp_path, flags, kept):
    write(tmp_path / "prepared", {"a": FILLED})
    copies = [Record("a", GROUP["train"], pair("x"), train=train).to_json() for train in flags]
    (tmp_path / "prepared/a.jsonl").open("a").writelines(copies)
    _, metrics = run(tmp_path, {"a": {}})
    assert [record.train for record in read_records(tmp_path / "train.jsonl") if record.text == pair("x")] == [kept]
    assert metrics["duplicates"] == len(copies) - 1


def questions(prefix, count=40):
    """Records as prepare writes them, by what they ask."""
    texts = [pair(f"{prefix} {i}?", f"{prefix} {i}!") for i in range(count)]
    return [(question_group(text), text) for text in texts]


def test_sources_that_share_questions_have_them_on_one_side(tmp_path):
    others = [(group, text.replace("!", " indeed.")) for group, text in questions("q")]
    texts, metrics = mixed(tmp_path, {"a": FILLED + questions("q"), "b": others})
    asked = [{text.partition("<|im_end|>")[0] for text in texts[name]} for name in mix.SPLITS]
    assert not asked[0] & asked[1] and not asked[0] & asked[2] and not asked[1] & asked[2]
    assert (sum(map(len, texts.values())), metrics["leaked"]) == (83, 0)


def reference(records):
    """The result by the plain rules: lists of indices by split, duplicates, leaked."""
    best = {}
    for index, (group, text) in enumerate(records):
        best[text] = min(best.get(text, (9, 9)), (mix.SPLITS.index(assign_split(group, **SHARES)), index))
    remaining = {
        name: [text for i, (_, text) in enumerate(records) if best[text] == (s, i)] for s, name in enumerate(mix.SPLITS)
    }
    dropped = [(group, text) for i, (group, text) in enumerate(records) if best[text][1] != i]
    leaked = sum(assign_split(group, **SHARES) == "train" and best[text][0] < split.TRAIN for group, text in dropped)
    return remaining, len(dropped) - leaked, leaked


RECORDS = st.lists(st.tuples(st.integers(0, 30).map("a/{}".format), st.integers(0, 15).map(str).map(pair)), max_size=40)


@given(RECORDS, st.integers(1, 3))
def test_the_result_is_that_of_the_plain_rules_whatever_the_chunks_and_shards(tmp_path_factory, records, size):
    folder = tmp_path_factory.getbasetemp()
    records = [(GROUP.get(group, group), text) for group, text in FILLED] + records
    write(folder / "prepared", {"a": records})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixing, "SHARD_BYTES", 60 * size)
        patch.setenv("CHATMILL_WORKERS", "1")
        texts, metrics = run(folder, {"a": {}})
    remaining, duplicates, leaked = reference(records)
    assert texts == remaining
    assert (metrics["duplicates"], metrics["leaked"]) == (duplicates, leaked)


WAYS = [(1, 10**9, 10**9, 10**9), (2, 2_000, 50, 10**9), (1, 500, 7, 1_000)]


def test_outputs_do_not_depend_on_how_many_processes_work_nor_on_the_sizes_of_parts(tmp_path, monkeypatch):
    letters = str.maketrans("0123456789", "ghijklmnop")
    words = [hashlib.md5(bytes([i % 150, i % 3])).hexdigest().translate(letters) for i in range(400)]
    texts = [pair(" ".join(words[i : i + 25])) for i in range(370)]
    texts += [pair(" ".join([*words[i : i + 4], "other", *words[i + 5 : i + 25]])) for i in range(0, 100, 3)]
    texts += [texts[i] + texts[i + 20] for i in range(0, 50, 5)]
    write(tmp_path / "prepared", {"a": FILLED + [(f"a/{i % 60}", text) for i, text in enumerate(texts)]})
    found = []
    for workers, shard, block, batch in WAYS:
        monkeypatch.setenv("CHATMILL_WORKERS", str(workers))
        monkeypatch.setattr(mixing, "SHARD_BYTES", shard)
        monkeypatch.setattr(near_duplicates, "CACHED", block)
        monkeypatch.setattr(near_duplicates, "BATCH", batch)
        run(tmp_path, {"a": {"near_duplicates": "within"}}, near_duplicates=True)
        found.append([(tmp_path / f"{name}.jsonl").read_bytes() for name in (*mix.SPLITS, "metrics")])
    assert found[0] == found[1] == found[2]
    assert sum(json.loads(found[0][-1])["near_duplicates"].values()) > 30


# near-duplicates

LONG = re.findall(r"\w+", "We walked along the river for an hour and had soup in the small café by the old bridge")
NEAR = {"near_duplicates": True, "scope": "within"}


def test_train_loses_what_nearly_equals_a_held_out_conversation(tmp_path):
    near = pair(" ".join(LONG).upper() + "!")
    other = pair(" ".join(reversed(LONG)))
    records = [*FILLED, ("test", pair(" ".join(LONG))), ("train", near), ("train", other), ("validation", near)]
    texts, metrics = mixed(tmp_path, {"a": records}, **NEAR)
    assert texts["train"] == [pair("filler of train"), other]
    assert near in texts["validation"]
    assert (metrics["leaked"], metrics["duplicates"]) == (1, 0)


STORY = "When the family came to the village of Bergen they found a small house by the river and it was not cold at all"


@pytest.mark.parametrize(
    ("word", "other", "is_dropped"),
    [
        ("house", "hut", True),
        ("family", "FAMILY", True),
        ("Bergen", "Lucerne", False),
        ("not", "nearly", False),
        ("small", "large", False),
        ("the river", "river 7", False),
        ("at all", "at all \U0001f44d", False),
    ],
)
def test_another_name_negation_opposite_or_number_makes_another_conversation(tmp_path, word, other, is_dropped):
    records = [*FILLED, ("test", pair(STORY)), ("train", pair(STORY.replace(word, other)))]
    texts, _ = mixed(tmp_path, {"a": records}, **NEAR)
    assert len(texts["train"]) == 2 - is_dropped


@pytest.mark.parametrize("pair_of", ["\U0001f44d\U0001f44e", "\u2660\u2665", "€$", "☀☂"])
def test_other_symbols_make_other_conversations(tmp_path, pair_of):
    one, other = (pair(f"{STORY} {symbol}") for symbol in pair_of)
    again = pair(f"{STORY.upper()} {pair_of[0]}")
    texts, _ = mixed(tmp_path, {"a": [*FILLED, *(("train", text) for text in (one, other, again))]}, **NEAR)
    assert texts["train"] == [pair("filler of train"), one, other]


def test_of_near_duplicates_the_held_out_one_remains_and_else_the_first(tmp_path):
    first, second, third = (pair(" ".join(LONG) + end) for end in (".", " today.", " then!"))
    held_out, leaked = (pair(" ".join(reversed(LONG)), answer) for answer in ("Oh!", "Oh."))
    records = [("train", text) for text in (leaked, second, first, third, second, held_out)]
    texts, metrics = mixed(tmp_path, {"a": FILLED + records, "b": [("validation", held_out)]}, **NEAR)
    assert texts["train"] == [pair("filler of train"), second]
    assert metrics["near_duplicates"] == {"train": 2, "leaked": 1}
    assert [metrics["conversations"]["train"], metrics["duplicates"], metrics["leaked"]] == [2, 1, 1]


@pytest.mark.parametrize(
    ("scopes", "remaining"),
    [
        ((None, None), ".a"),
        (("across", None), ".a !a"),
        (("across", "across"), ".a !a"),
        (("off", "within"), ".a !a ?b"),
        (("within", "off"), ".a ?b ;b"),
        (("off", "off"), ".a !a ?b ;b"),
    ],
)
def test_sources_are_compared_with_themselves_with_others_or_not(tmp_path, scopes, remaining):
    sources = {
        name: [question_of_train(" ".join(LONG) + end) for end in ends] for name, ends in (("a", ".!"), ("b", "?;"))
    }
    write(tmp_path / "prepared", {name: FILLED * (name == "a") + records for name, records in sources.items()})
    sections = {name: {"near_duplicates": scope} for name, scope in zip("ab", scopes, strict=True)}
    run(tmp_path, sections, near_duplicates=True)
    records = [record for record in read_records(tmp_path / "train.jsonl") if "river" in record.text]
    assert " ".join(record.text.split("<|im_end|>")[0][-1] + record.source for record in records) == remaining


def question_of_train(question):
    return on_side(question_group(pair(question)), "train"), pair(question)


def test_generated_conversations_are_compared_with_other_sources_alone(tmp_path):
    generated = [(on_side(f"skills/{end}", "train"), pair(" ".join(LONG) + end)) for end in ".!?"]
    texts, _ = mixed(tmp_path, {"a": FILLED + generated}, near_duplicates=True)
    assert len(texts["train"]) == 4
    (folder := tmp_path / "more").mkdir()
    held_out = ("test", pair(" ".join(LONG)))
    texts, metrics = mixed(folder, {"a": FILLED + generated, "b": [held_out]}, near_duplicates=True)
    assert (len(texts["train"]), metrics["near_duplicates"]) == (1, {"train": 0, "leaked": 3})


# errors


@pytest.mark.parametrize("name", mix.SPLITS)
def test_an_empty_side_is_an_error(tmp_path, name):
    least = {"train": 6, "validation": 21, "test": 21}[name]  # 0.6 ** n or 0.8 ** n below 0.01
    expected = f"no conversations remain for {name}, of 2 in all: expected at least {least}, of which a share of"
    with pytest.raises(ValueError, match=expected):
        mixed(tmp_path, {"a": [record for record in FILLED if record[0] != name]})


def test_what_is_left_of_removed_sources_is_named_with_one_command(tmp_path):
    write(tmp_path / "prepared", {"a": FILLED, "old": FILLED, "b c": FILLED})
    expected = f"no section prepare.b c, prepare.old: call `rm '{tmp_path}/prepared/b c'.* {tmp_path}/prepared/old.*`"
    with pytest.raises(ValueError, match=re.escape(expected)):
        run(tmp_path, {"a": {}})
    subprocess.run(expected.split("`")[1], shell=True, check=True)
    run(tmp_path, {"a": {}})


def test_the_stage_runs_and_leaves_no_scratch(tmp_path):
    write(tmp_path / "prepared", {"a": FILLED})
    (tmp_path / "params.yaml").write_text(
        "prepare: {a: {path: x, format: text}}\nmix: {validation_share: 0.2, test_share: 0.2, near_duplicates: true}\n"
    )
    files = ["chat/train.jsonl", "chat/validation.jsonl", "chat/test.jsonl", "chat/manifest.json", "metrics/mix.json"]
    names = ("--train", "--validation", "--test", "--manifest", "--metrics")
    named = (part for pair in zip(names, files, strict=True) for part in pair)
    command = [sys.executable, SOURCE / "mix.py", "--prepared", "prepared", *named]
    subprocess.run(command, cwd=tmp_path, check=True)
    assert sorted(str(f.relative_to(tmp_path)) for f in tmp_path.glob("[cm]*/**/*")) == sorted(files)


def test_a_prepared_file_that_was_changed_is_refused(tmp_path):
    write(tmp_path / "prepared", {"a": FILLED})
    file = tmp_path / "prepared/a.jsonl"
    write_file_manifest(file.with_suffix(".manifest.json"), [file], kind="conversations", counts={})
    run(tmp_path, {"a": {}})
    file.write_bytes(file.read_bytes().replace(b"train", b"trail", 1))
    with pytest.raises(ValueError, match=f"^{file} is damaged or was edited: run `chatmill repair`, then `dvc repro`$"):
        run(tmp_path, {"a": {}})
