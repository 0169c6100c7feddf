"""A repository with runs of every kind, built in seconds: its one stage copies the outputs of a pipeline."""

import hashlib
import json
import os
import subprocess
import sys
from copy import deepcopy

import yaml

from support.tiny import write_model

SUMMARY = {"bits_per_byte": 2.0, "bits_per_byte_answers": 1.5, "skills": 0.5, "skills_held_back": 0.25}
SUMMARY |= {"verbatim": 0.0625, "model_mb": 7.5, "bytes_per_token": 3.0}
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
    """A repository of git and DVC whose branch `main` has one run."""

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
        """Turn the workspace into a run with these metrics."""
        benchmark, params = deepcopy(BENCHMARK), deepcopy(PARAMS)
        benchmark["onnx"]["cache"]["128"]["token_ms"]["p50"] = milliseconds
        params["train_tokenizer"]["type"], params["train_model"]["depth"] = tokenizer, depth
        self.write("data/metrics/summary.json", json.dumps(SUMMARY | {"bits_per_byte": bits} | more))
        self.time(benchmark)
        self.write("params.yaml", yaml.safe_dump(params))

    def time(self, benchmark):
        """Turn the workspace into a run with this benchmark.json, also in DVC's cache."""
        content = json.dumps(benchmark)
        self.store("data/metrics/benchmark.json", content)
        self._replace("data/metrics/benchmark.json", content)

    def store(self, output, content):
        """Turn the workspace into a run with this file among its outputs, which is in DVC's cache; returns its path."""
        digest = hashlib.md5(content.encode()).hexdigest()
        pipeline, lock = (yaml.safe_load((self.folder / file).read_text()) for file in ("dvc.yaml", "dvc.lock"))
        outs, locked = pipeline["stages"]["make"]["outs"], lock["stages"]["make"]["outs"]
        entry = {"path": output, "hash": "md5", "md5": digest, "size": len(content)}
        lock["stages"]["make"]["outs"] = [*(one for one in locked if one["path"] != output), entry]
        self.write("dvc.lock", yaml.safe_dump(lock))
        if output not in outs:
            outs.append(output)
            self.write("dvc.yaml", yaml.safe_dump(pipeline))
        return self._replace(f".dvc/cache/files/md5/{digest[:2]}/{digest[2:]}", content)

    def commit(self):
        """Commit the workspace."""
        self.git("add", "-A")
        self.git("commit", "-qm", "A run")

    def branch(self, name):
        """Commit the workspace to a new branch, then reset it."""
        self.git("branch", name, self._revision())
        self.git("reset", "-q", "--hard")

    def experiment(self, name):
        """Commit the workspace to an experiment, as DVC stores them, then reset it."""
        head = self.git("rev-parse", "HEAD")
        self.git("update-ref", f"refs/exps/{head[:2]}/{head[2:]}/{name}", self._revision())
        self.git("reset", "-q", "--hard")

    def git(self, *arguments):
        """Run git; returns its output."""
        identity = ("-c", "user.name=chatmill", "-c", "user.email=chatmill@localhost")
        return self._run("git", *identity, *arguments)

    def dvc(self, *arguments):
        """Run DVC; returns its output."""
        return self._run(sys.executable, "-m", "dvc", *arguments)

    def _revision(self):
        self.git("add", "-A")
        return self.git("commit-tree", self.git("write-tree"), "-p", "HEAD", "-m", "A run")

    def _replace(self, file, content):
        path = self.folder / file
        path.unlink(missing_ok=True)  # it may be read-only
        path.parent.mkdir(exist_ok=True)
        self.write(file, content)
        return path

    def _new(self, folder):
        (self.folder / folder).mkdir(parents=True)
        return self.folder / folder

    def _run(self, *command):
        environment = os.environ | {"DVC_NO_ANALYTICS": "1"}
        done = subprocess.run(command, cwd=self.folder, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()
