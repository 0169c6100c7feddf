import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest

import export_onnx
from chatmill.conversation import Message, Part, Record, conversation_segments, parse, render, unescape
from chatmill.datasets.formats.talk import generate
from chatmill.encoded.token_files import read_meta, read_split, write_meta
from chatmill.evaluation.answering import read_prompts
from chatmill.evaluation.bits_per_byte import nats_of_logits
from chatmill.evaluation.intervals import wilson
from chatmill.inference.model_loading import load_engine
from chatmill.pipeline.manifest import write_manifest
from chatmill.record_files import read_records
from evaluate import main
from support.paths import ANY_FOLDER
from support.talk import write_persona
from support.tiny import byte_tokenizer, write_model
from support.training_runs import write_tokens

SETTINGS = {"max_tokens": 4, "threads": 1, "skill_prompts": 2, "engine_prompts": 1, "compare_tokenizers": []}
SETTINGS |= {"stride": None, "conversations": None, "talk_prompts": 3, "full_size": 10**9}
CALL = (Part("call", "1+1"), Part("output", "2"), Part("text", "Two."))


def record(source, key, answer, skill=None):
    conversation = [Message.from_text("user", f"What of {key}?"), Message("assistant", answer)]
    return Record(source, f"{source}/{key}", render(conversation), skill)


def skill_record(name, phrasing, key):
    return record("skills", key, CALL, {"name": name, "phrasing": phrasing, "answers": ["Two."]})


RECORDS = [
    record("talk", "tea", (Part("text", "Tea is fine, naïvely. <|im_end|>"),)),
    skill_record("adding", "known", 1),
    skill_record("adding", "held_back", 2),
    skill_record("naming", "known", 3),
    record("talk", "long", (Part("text", "and on " * 130),)),  # longer than the context
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("evaluate")
    export_onnx.main(write_model(folder / "model"), folder / "onnx", quantize=["int8", "int8_dynamic", "int4"])
    (folder / "free.txt").write_text("Hello?\n\nWhat\u2028is 1+1?\n")
    (folder / "general.txt").write_text("A cat sleeps.\n\nThe sea is deep.\n")
    write_tokens(folder)
    with (folder / "train.jsonl").open("a", encoding="utf-8") as train:
        train.write(record("talk", "fish", (Part("text", "Tea is FINE, naïvely."),)).to_json())
    return folder


def evaluated(folders, out, records=RECORDS, model=None, tokens=None, initial=None, **settings):
    (out / "test.jsonl").write_text("".join(one.to_json() for one in records), encoding="utf-8")
    texts = (folders / name for name in ("train.jsonl", "free.txt", "general.txt"))
    made = (tokens or folders / "tokens", model or folders / "model", folders / "onnx")
    inputs = (out / "test.jsonl", *texts, *made, ANY_FOLDER, folders, out / "samples.jsonl", out / "evaluate.json")
    main(*inputs, initial=initial, parameters=SETTINGS | settings)
    return json.loads((out / "evaluate.json").read_text())


@pytest.fixture(scope="module")
def metrics(folders, tmp_path_factory):
    return evaluated(folders, tmp_path_factory.mktemp("metrics"))


def test_bits_per_byte_pool_the_documents_scored_one_at_a_time(folders, tmp_path):
    engine, tokenizer = load_engine(folders / "model", "pytorch", device="cpu"), byte_tokenizer()
    nats, num_bytes = 0.0, 0
    for one in RECORDS[:-1]:
        ids, _ = tokenizer.encode_segments(conversation_segments(parse(one.text)))
        is_text = np.array(ids[1:]) < tokenizer.num_text
        nats += nats_of_logits(engine.sequence_logits(ids), np.array(ids))[is_text].sum()
        num_bytes += is_text.sum() - one.text.count("<\\")  # a byte is a token, and escapes are not counted
    found = evaluated(folders, tmp_path, RECORDS[:-1])["bits_per_byte"]["all"]
    assert found == pytest.approx(nats / num_bytes / math.log(2), abs=1e-4)


@pytest.fixture(scope="module")
def persona_records(tmp_path_factory):
    items = generate(write_persona(tmp_path_factory.mktemp("persona")), limit=450, seed=1)
    return [Record("talk", item.group, render(item.conversation), item.skill) for item in items if item.skill]


def test_sense_and_recall_are_measured_beside_the_parrot(folders, tmp_path, persona_records):
    found = evaluated(folders, tmp_path, persona_records)
    kinds = {"first": 0.0, "later": 0.0, "noisy": 0.0}
    assert found["sense"] == kinds | {"parrot": kinds} and found["recall"] == 0.0
    assert found["counts"]["sense"] == dict.fromkeys(kinds, 3) | {"parrot": dict.fromkeys(kinds, 3)}
    assert found["intervals"]["sense"]["parrot"]["later"] == pytest.approx(wilson(0, 3), abs=1e-6)
    assert found["counts"]["recall"] == 3 and "skills" not in found


def test_sources_pool_to_the_whole(metrics):
    bits = metrics["bits_per_byte"]
    sizes = {"talk": 0, "skills": 0}
    for one in RECORDS:
        texts = (part.text for part in conversation_segments(parse(one.text)) if not part.control)
        sizes[one.source] += sum(len(unescape(text).encode()) for text in texts)
    pooled = sum(bits["by_source"][name] * size for name, size in sizes.items()) / sum(sizes.values())
    assert bits["all"] == pytest.approx(pooled, abs=1e-5)


def test_n_grams_of_the_training_text_are_a_baseline(folders, tmp_path):
    """They know those of its conversations that are among the test conversations, and not the words of the other."""
    talks = list(read_records(folders / "train.jsonl"))
    others = [replace(one, source="other") for one in RECORDS[:1]]
    bits = evaluated(folders, tmp_path, [*talks[:8], *others])["bits_per_byte"]
    by_source = bits["ngram_by_source"]
    assert 0 < by_source["talk"] < 0.5 and by_source["other"] > 2
    assert by_source["talk"] < bits["baselines"]["ngram"] < by_source["other"]
    assert 2 <= bits["ngram_order"] <= 8
    assert bits["ngram_train_tokens"] == len(read_split(folders / "tokens", "train").ids)


def test_what_was_learnt_since_the_initial_model(folders, tmp_path):
    """Of a model that changed nothing, nothing changed; a general text has no source, nor a part in any other sum."""
    found = evaluated(folders, tmp_path, RECORDS[:-1], initial=folders / "model")
    before, after = found["initial"]["before"], found["initial"]["after"]
    sources = before.pop("answers_by_source")
    assert sources == pytest.approx(after.pop("answers_by_source"), abs=1e-4)
    assert (
        before == pytest.approx(after, abs=1e-4) and sources.keys() == {"skills", "talk"} and 2 < before["general"] < 12
    )
    assert found["counts"]["initial"]["before"]["general"] == 2
    assert after["answers"] == pytest.approx(found["bits_per_byte"]["assistant"], abs=1e-4)
    assert "initial" not in evaluated(folders, tmp_path, RECORDS[:1], initial=folders / "absent")


def test_of_a_large_model_less_is_measured(folders, tmp_path, persona_records, capsys):
    asked = [*persona_records, skill_record("adding", "known", "on " * 400)]
    found = evaluated(folders, tmp_path, asked, full_size=2000, conversations=100)
    assert found["counts"]["bits_per_byte"]["all"] < 100 and found["counts"]["sense"]["first"] < 3
    message = capsys.readouterr().err
    assert "as large as evaluate.full_size" in message
    assert "do not fit into a context of 640 are left out: 1\n" in message and "skills" not in found


@pytest.mark.parametrize("changed", [{"fingerprint": "another"}, {"template": "markers"}])
def test_tokens_that_are_not_encoded_as_the_model_reads_are_refused(folders, tmp_path, changed):
    tokens = shutil.copytree(folders / "tokens", tmp_path / "tokens")
    write_meta(tokens, replace(read_meta(tokens), **changed))
    message = r"tokens was encoded with another tokenizer or template than that of .*model: .* dvc repro train_model"
    with pytest.raises(ValueError, match=message):
        evaluated(folders, tmp_path, RECORDS[:1], tokens=tokens)


def samples_of(folder):
    return [json.loads(line) for line in (folder / "samples.jsonl").open(encoding="utf-8")]


def test_where_the_persona_is_asked_the_free_prompts_are_answered(folders, tmp_path, persona_records):
    evaluated(folders, tmp_path, persona_records[:8])
    assert [sample["prompt"] for sample in samples_of(tmp_path)] == ["Hello?", "What\u2028is 1+1?"]
    assert all(type(sample["answer"]) is str and type(sample["stopped"]) is bool for sample in samples_of(tmp_path))


def paths(tree, prefix=""):
    """The paths of the values in nested dictionaries."""
    for key, item in tree.items():
        yield from paths(item, f"{prefix}{key}.") if isinstance(item, dict) else [f"{prefix}{key}"]


@pytest.fixture(scope="module")
def more_metrics(folders, tmp_path_factory):
    """Those of as much talk as intervals need."""
    talk = [record("talk", key, (Part("text", f"Of {key} I know {key}."),)) for key in range(20)]
    return evaluated(folders, tmp_path_factory.mktemp("more_metrics"), RECORDS + talk)


def test_every_share_and_the_bits_have_an_interval_and_a_count(more_metrics):
    plain = {path for path in paths(more_metrics) if not path.startswith(("intervals.", "counts."))}
    skills = {f"skills.{name}" for name in ("macro", "adding", "naming", "held_back.macro", "held_back.adding")}
    engines = {f"engines.{name}.skills_macro" for name in more_metrics["engines"]}
    text = ("all", "assistant", "by_source.talk", "baselines.ngram", "ngram_assistant", "ngram_by_source.talk")
    bits = {f"bits_per_byte.{name}" for name in text}
    shares = skills | engines | {"stops_rate", "verbatim.share", "verbatim.true.share"}
    measured = set(paths(more_metrics["intervals"]))
    assert shares | bits <= measured <= shares | bits <= plain
    few = {f"bits_per_byte.{name}.skills" for name in ("by_source", "ngram_by_source")}
    assert set(paths(more_metrics["counts"])) == shares | bits | few


def test_two_runs_write_the_same_bytes(folders, tmp_path):
    runs = []
    for _ in range(2):
        evaluated(folders, tmp_path, RECORDS[:2])
        runs.append((tmp_path / "evaluate.json").read_bytes() + (tmp_path / "samples.jsonl").read_bytes())
    assert runs[0] == runs[1]


def test_all_text_means_nothing_where_prompts_were_not_trained(folders, tmp_path):
    model = write_model(tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    config["chatmill"]["prompt_loss_weight"] = 0.0
    (model / "config.json").write_text(json.dumps(config))
    write_manifest(model, kind="model", fingerprint=byte_tokenizer().fingerprint)
    bits = evaluated(folders, tmp_path, RECORDS[:1], model)["bits_per_byte"]
    assert bits["all"] is None
    assert bits["by_source"] == {"talk": bits["assistant"]}
    assert bits["ngram_by_source"] == {"talk": bits["ngram_assistant"]} != {"talk": bits["baselines"]["ngram"]}
    assert "prompt_loss_weight is 0" in bits["note"]


def test_a_test_set_without_conversations_is_refused(folders, tmp_path):
    with pytest.raises(ValueError, match=r"test\.jsonl: no conversations: raise mix\.test_share"):
        evaluated(folders, tmp_path, [])


def test_prompts_that_are_not_utf8_are_refused(folders, tmp_path):
    (tmp_path / "free.txt").write_bytes(b"ok\n\xff\n")
    with pytest.raises(ValueError, match=r"free\.txt: not UTF-8 at byte 3"):
        read_prompts(None, tmp_path / "free.txt", (), 4)


def test_a_model_and_an_export_of_different_tokenizers_are_refused(folders, tmp_path):
    model = write_model(tmp_path / "model")
    write_manifest(model, kind="model", fingerprint="another")
    with pytest.raises(ValueError, match="have different tokenizers"):
        evaluated(folders, tmp_path, model=model)
