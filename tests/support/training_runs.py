"""Some short conversations, encoded as bytes, and parameters with which a model is trained on them in seconds."""

import csv
import socket
import subprocess
import sys
import time

import yaml

import encode
import score_teacher
import train_model
from chatmill.conversation import Message, Record, render
from chatmill.tokenizer.vocabulary.tokenizer_folder import write_folder
from chatmill.training.checkpoint import Checkpoint
from support.paths import ANY_FOLDER
from support.tiny import VOCABULARY

SOURCES = ("talk", "visits")
SETTINGS = {"depth": 1, "context": 64, "steps": 8, "batch_size": 256, "prompt_loss_weight": 0.1, "seed": 1}
SETTINGS |= {"threads": 1, "precision": "float32", "compile": False, "device": "cpu"}


def write_tokens(folder, held_out=range(60, 70), answers=("yes", "yes"), held_out_answers=None, **teacher):
    """Write the files that `encode` reads and writes, and a teacher's; each of SOURCES has an answer."""
    for split, numbers, said in (("train", range(60), answers), ("validation", held_out, held_out_answers or answers)):
        talks = [
            [Message.from_text("user", f"{i}?"), Message.from_text("assistant", said[i % 2] * (i % 4 + 1))]
            for i in numbers
        ]
        lines = (
            Record(SOURCES[i % 2], f"talk/{i}", render(talk)).to_json() for i, talk in zip(numbers, talks, strict=True)
        )
        (folder / f"{split}.jsonl").write_text("".join(lines), encoding="utf-8")
    write_folder(VOCABULARY, folder / "tokenizer")
    files = (folder / name for name in ("train.jsonl", "validation.jsonl", "tokenizer", "tokens"))
    encode.main(*files, template="chatml")
    return write_teacher(folder, **teacher)


def write_teacher(folder, out="teacher", teacher=None, ngram_order=None):
    """Write the predictions for the tokens in a folder, or that there are none."""
    files = (folder / "tokens", folder / "tokenizer", ANY_FOLDER, folder / out)
    score_teacher.main(*files, teacher=teacher, ngram_order=ngram_order, threads=1)
    return folder


def run_training(tokens, out, **changes):
    """The stage, called as a function."""
    out.mkdir(exist_ok=True)
    if changes.get("processes", 1) > 1:  # torchrun's launcher calls the script anew
        command = [sys.executable, *training_command(tokens, out, **changes)]
        done = subprocess.run(command, cwd=out, capture_output=True, text=True, check=False)
        sys.stderr.write(done.stderr)
        assert done.returncode == 0, done.stderr
        return out
    inputs = (*(tokens / name for name in ("tokens", "tokenizer", "teacher")), ANY_FOLDER)
    train_model.main(*inputs, out / "model", out / "train.tsv", parameters=SETTINGS | changes)
    return out


def training_command(tokens, out, **changes):
    """The arguments with which Python runs the stage in a folder, whose params.yaml this writes."""
    out.mkdir(exist_ok=True)
    section = SETTINGS | changes
    params = {"threads": section.pop("threads"), "train_model": section}
    (out / "params.yaml").write_text(yaml.safe_dump(params))
    files = {name: tokens / name for name in ("tokens", "tokenizer", "teacher")}
    files |= {"external": ANY_FOLDER, "model": "model", "curve": "train.tsv"}
    return [train_model.__file__, *(str(part) for name, file in files.items() for part in (f"--{name}", file))]


def read_curve(folder):
    """The lines of train.tsv."""
    with (folder / "train.tsv").open() as file:
        return list(csv.DictReader(file, delimiter="\t"))


def kill_when_saved(process, top):
    """Kill a run as soon as it has a checkpoint in the scratch folder of `top`; return the checkpoint."""
    folders = []
    while not folders and process.poll() is None:
        time.sleep(0.01)
        folders = [file.parent for file in top.glob(".cache/resume/*/*.pt")]
    process.kill()
    process.communicate()
    checkpoint = Checkpoint("any")
    checkpoint.folder = folders[0]
    return checkpoint


def free_port():
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]
