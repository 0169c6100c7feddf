"""What a model predicts, compared with its probabilities summed up one by one."""

from collections import defaultdict
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

import encode
from chatmill import processor
from chatmill.conversation import BOS, PAD, Message, Record, render
from chatmill.encoded.token_files import read_split
from chatmill.teacher.model_teacher import ModelTeacher
from chatmill.tokenizer.encoding.chat_tokenizer import ChatTokenizer
from chatmill.tokenizer.types import bpe, byte, sentencepiece
from chatmill.tokenizer.vocabulary.tokenizer_folder import add_special_tokens, write_folder
from chatmill.training.model_folder import write_model
from support import training_runs
from support.external_folder import write_external
from support.texts import SAMPLE_TEXT
from support.tiny import CONFIG, random_model
from support.training_runs import write_teacher, write_tokens

CPU = torch.device("cpu")
KEPT = 5


def vocabulary(kind, number):
    return add_special_tokens(kind.train([SAMPLE_TEXT] * 3, number, kind.Settings()), [])


STUDENTS = {"byte": vocabulary(byte, 256), "bpe": vocabulary(bpe, 280), "unigram": vocabulary(sentencepiece, 420)}
LARGER = vocabulary(bpe, 400)


@pytest.fixture(autouse=True)
def without_bfloat16_and_gradients(monkeypatch):
    monkeypatch.setattr(processor.Processor, "gains_by_bfloat16", property(lambda self: False))
    with torch.no_grad():
        yield


def write_conversations(folder, student):
    """Tokens of a few conversations."""
    lines = [line[:60] for line in SAMPLE_TEXT.strip().splitlines()]
    talks = [[Message.from_text("user", line), Message.from_text("assistant", line[::-1])] for line in lines]
    records = [Record("talk", f"talk/{i}", render(talk)).to_json() for i, talk in enumerate(talks)]
    for split in ("train", "validation"):
        (folder / f"{split}.jsonl").write_text("".join(records))
    write_folder(student, folder / "tokenizer")
    encode.main(
        *(folder / name for name in ("train.jsonl", "validation.jsonl", "tokenizer", "tokens")), template="chatml"
    )
    return read_split(folder / "tokens", "train")


def write_big(folder, teacher, context=640):
    """A model with this vocabulary, and its folder."""
    model = random_model(replace(CONFIG, vocab_size=len(teacher.tokens), max_position_embeddings=context))
    write_folder(teacher, folder / "its_tokenizer")
    write_model(folder / "big", model, folder / "its_tokenizer", teacher, {"template": "chatml"})
    return model, folder / "big"


def predict(teacher, split):
    return teacher.predict(slice(0, len(split.offsets) - 1), KEPT)


@pytest.mark.parametrize("context", [640, 32])
def test_a_model_with_the_same_tokenizer_gives_its_own_probabilities(tmp_path, context):
    student = STUDENTS["byte"]
    split = write_conversations(tmp_path, student)
    model, path = write_big(tmp_path, student, context)
    teacher = ModelTeacher(path, split, student, CPU)
    found, nats, count = predict(teacher, split), 0.0, 0
    for begin, end in pairwise(split.offsets.tolist()):
        ids = torch.from_numpy(split.ids[begin:end].astype(np.int64))
        assert not found.chances[begin].any()
        for place in range(1, end - begin):
            later = max(0, -(-(place - context) // (context // 2)))  # windows move by half a context
            first = max(0, min(end - begin, 1 + context + later * (context // 2)) - context - 1)
            chances = model(ids[None, first:place], last_only=True)[0, 0].softmax(-1)
            likeliest = chances.topk(KEPT)
            assert found.tokens[begin + place].tolist() == likeliest.indices.tolist()
            np.testing.assert_allclose(found.chances[begin + place], likeliest.values.numpy(), rtol=2e-4)
            if ids[place] < student.num_text:
                nats, count = nats - float(chances[ids[place]].log()), count + 1
    assert teacher.describe()["bits_per_byte"] == pytest.approx(nats / count / np.log(2), rel=1e-4)
    assert (context == 640) == (max(np.diff(split.offsets)) <= context)


@pytest.mark.slow
@pytest.mark.parametrize("name", STUDENTS)
def test_a_model_with_another_tokenizer_predicts_by_the_bytes_that_it_has_read(tmp_path, name):
    student, split = STUDENTS[name], write_conversations(tmp_path, STUDENTS[name])
    model, path = write_big(tmp_path, LARGER)
    found = predict(ModelTeacher(path, split, student, CPU), split)
    own, big = ChatTokenizer(student), ChatTokenizer(LARGER)
    assert found.chances.max() > 0.05
    for begin, end in pairwise(split.offsets.tolist()):
        ids = split.ids[begin:end].tolist()
        places = naive(own, big, model, ids)
        for place, (tokens, chances) in enumerate(zip(*(array[begin:end] for array in found), strict=True)):
            expected = sorted(places[place].values(), reverse=True)[:KEPT]
            np.testing.assert_allclose(chances[: len(expected)], expected, rtol=1e-3, atol=1e-6)
            for token, chance in zip(tokens.tolist(), chances.tolist(), strict=True):
                assert chance == pytest.approx(places[place].get(token, 0), rel=1e-3, abs=1e-6)


def naive(own, big, model, ids):
    """The chances of tokens in the place of each, summed over the teacher's tokens."""
    controls = {big.special[name]: i for name, i in own.special.items() if name not in (BOS, PAD)}
    runs, text = [], b""
    for i in ids:
        if own.is_text[i]:
            text += own.token_bytes[i]
        else:
            runs, text = [*runs, *big.encode(text.decode()), big.special[own.token_bytes[i].decode()]], b""
    runs += big.encode(text.decode())
    rows = torch.cat([torch.zeros(1, big.vocab_size), model(torch.tensor([runs]))[0].softmax(-1)]).double().numpy()
    result, index, read = [], 0, b""
    for place, i in enumerate(ids):
        actual = big.token_bytes[runs[index]] if big.is_text[runs[index]] else b"\1"
        crosses = own.is_text[i] and len(read) + len(own.token_bytes[i]) > len(actual)
        result.append(defaultdict(float))
        remaining = [w for w in range(big.vocab_size) if big.is_text[w] and big.token_bytes[w].startswith(read)]
        total = rows[index][remaining].sum() if read else 1.0
        for w in remaining if place else []:
            rest = big.token_bytes[w][len(read) :]
            token = first_token(own, rest)
            if token is not None and not (crosses and w == runs[index]):
                result[-1][token] += rows[index][w] / total
        if place and not read:
            for w, token in controls.items():
                result[-1][token] += rows[index][w]
        left = own.token_bytes[i] if own.is_text[i] else b"\1"
        while left:
            actual = big.token_bytes[runs[index]] if big.is_text[runs[index]] else b"\1"
            step = min(len(left), len(actual) - len(read))
            read, left = read + left[:step], left[step:]
            if len(read) == len(actual):
                index, read = index + 1, b""
    return result


def first_token(tokenizer, rest):
    """As the student writes these bytes; None where it does not begin with them alone."""
    if tokenizer.vocabulary.type == "byte":
        return tokenizer.token_bytes.index(rest[:1]) if rest else None
    try:
        text = rest.decode()
    except UnicodeDecodeError as error:
        text = rest[: error.start].decode()
    return tokenizer.encode(text)[0] if text else None


def test_a_model_without_the_control_tokens_is_refused_with_the_parameter(tmp_path):
    (tmp_path / "big").mkdir()
    write_external(tmp_path / "big", "llama")
    message = (
        r"score_teacher\.teacher: .*big: its tokenizer has no <\|im_start\|>, .*: expected a model of this pipeline"
    )
    with pytest.raises(ValueError, match=message):
        write_tokens(tmp_path, teacher=tmp_path / "big")


def test_a_teacher_beside_the_project_is_refused_with_the_command_that_copies_it(tmp_path, monkeypatch):
    write_tokens(tmp_path)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training_runs, "ANY_FOLDER", tmp_path / "external")
        with pytest.raises(
            ValueError, match=r"score_teacher\.teacher: expected a path in .*external, which DVC tracks"
        ):
            write_teacher(tmp_path, "other", teacher=tmp_path / "big")


def test_what_is_no_model_is_refused_with_its_name(tmp_path):
    model = write_big(write_tokens(tmp_path), LARGER)[1]
    (model / "manifest.json").unlink()
    config = model / "config.json"
    config.write_text(config.read_text().replace('"vocab_size": 448', '"vocab_size": 384'))
    for path, message in (
        (tmp_path / "missing", r"missing: no such model folder: copy one there"),
        (model, r"big: .*embed_tokens\.weight.*384"),
    ):
        with pytest.raises(ValueError, match=rf"score_teacher\.teacher: .*{message}"):
            write_teacher(tmp_path, "other", teacher=path)
