"""A repository with runs of every kind, made in seconds: its one stage copies what the stages of a pipeline leave."""

import hashlib
import json
import os
import subprocess
import sys
from copy import deepcopy

import yaml

from support.tiny import write_model

SUMMARY = {
    "bits_per_byte": 2.0,
    "bits_per_byte_answers": 1.5,
    "skills": 0.5,
    "skills_held_back": 0.25,
    "model_mb": 7.5,
    "bytes_per_token": 3.0,
}
BENCHMARK = {
    "onnx": {"cache": {"16": {"token_ms": {"p50": 0.2}}, "128": {"token_ms": {"p50": 0.25}}}},
    "pytorch": {"cache": {"128": {"token_ms": {"p50": 1.5}}}},
}
PARAMS = {"train_tokenizer": {"type": "bpe"}, "train_model": {"depth": 3, "steps": 40, "batch_size": 1024}}
CURVE = "step\tbits_per_byte\tvalidation_bits_per_byte\n10\t4.5\t\n20\t3.5\t3.75\n40\tnan\t2.5\n"
STAGE = {
    "cmd": "mkdir -p data && cp -R made/. data",
    "deps": ["made"],
    "params": ["train_tokenizer", "train_model"],
    "outs": ["data/model", "data/report", "data/metrics/train.tsv", "data/metrics/benchmark.json"],
    "metrics": [{"data/metrics/summary.json": {"cache": False}}],
}


class RunRepository:
    """A folder under git and DVC whose branch `main` has one run."""

    def __init__(self, folder):
        self.folder = folder
        write_model(self._new("made/model"))
        (self._new("made/report") / "index.html").write_text("<!doctype html><title>report</title><h1>A report</h1>")
        (self._new("made/metrics") / "train.tsv").write_text(CURVE)
        self.write("made/metrics/summary.json", json.dumps(SUMMARY))
        self.write("made/metrics/benchmark.json", json.dumps(BENCHMARK))
        self.write("dvc.yaml", yaml.safe_dump({"stages": {"make": STAGE}}))
        self.write("params.yaml", yaml.safe_dump(PARAMS))
        self.write(".gitignore", "/made\n/data/*\n!/data/metrics\n/data/metrics/*\n!/data/metrics/summary.json\n")
        self.git("init", "-q", "-b", "main")
        self.dvc("init", "-q")
        self.dvc("repro")
        self.commit()

    def write(self, file, text):
        (self.folder / file).write_text(text)

    def measure(self, bits, tokenizer="bpe", depth=3, milliseconds=0.25, **more):
        """Let the workspace be a run with these figures."""
        benchmark, params = deepcopy(BENCHMARK), deepcopy(PARAMS)
        benchmark["onnx"]["cache"]["128"]["token_ms"]["p50"] = milliseconds
        params["train_tokenizer"]["type"], params["train_model"]["depth"] = tokenizer, depth
        self.write("data/metrics/summary.json", json.dumps(SUMMARY | {"bits_per_byte": bits} | more))
        self.time(benchmark)
        self.write("params.yaml", yaml.safe_dump(params))

    def time(self, benchmark):
        """Let the workspace be a run with these times, which lie in DVC's cache."""
        content = json.dumps(benchmark)
        digest = hashlib.md5(content.encode()).hexdigest()
        lock = yaml.safe_load((self.folder / "dvc.lock").read_text())
        for out in lock["stages"]["make"]["outs"]:
            if out["path"] == "data/metrics/benchmark.json":
                out |= {"md5": digest, "size": len(content)}
        self.write("dvc.lock", yaml.safe_dump(lock))
        for file in ("data/metrics/benchmark.json", f".dvc/cache/files/md5/{digest[:2]}/{digest[2:]}"):
            (self.folder / file).unlink(missing_ok=True)  # it may be read-only
            (self.folder / file).parent.mkdir(exist_ok=True)
            self.write(file, content)

    def commit(self):
        """Commit the workspace."""
        self.git("add", "-A")
        self.git("commit", "-qm", "A run")

    def branch(self, name):
        """Put the workspace into a branch of its own, and leave it as it was."""
        self.git("branch", name, self._revision())
        self.git("reset", "-q", "--hard")

    def experiment(self, name):
        """Put the workspace into an experiment, as DVC keeps them, and leave it as it was."""
        head = self.git("rev-parse", "HEAD")
        self.git("update-ref", f"refs/exps/{head[:2]}/{head[2:]}/{name}", self._revision())
        self.git("reset", "-q", "--hard")

    def git(self, *arguments):
        """What git prints."""
        identity = ("-c", "user.name=chatmill", "-c", "user.email=chatmill@localhost")
        return self._run("git", *identity, *arguments)

    def dvc(self, *arguments):
        """What DVC prints."""
        return self._run(sys.executable, "-m", "dvc", *arguments)

    def _revision(self):
        self.git("add", "-A")
        return self.git("commit-tree", self.git("write-tree"), "-p", "HEAD", "-m", "A run")

    def _new(self, folder):
        (self.folder / folder).mkdir(parents=True)
        return self.folder / folder

    def _run(self, *command):
        environment = os.environ | {"DVC_NO_ANALYTICS": "1"}
        done = subprocess.run(command, cwd=self.folder, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()
