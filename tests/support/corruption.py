"""Damage to a project that DVC does not see: the times and modes of the files remain."""

import json
import os
import random
from pathlib import Path

import psutil
import yaml

UNREPEATABLE = ("data/metrics/benchmark.json", "data/metrics/speeds.json", "data/report/")  # they hold times


def flip(content, randomly):
    """Change one bit of one byte to another letter or number."""
    place = randomly.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :]


WAYS = {
    "flip": flip,
    "truncate": lambda content, randomly: content[: randomly.randrange(len(content))],
    "extend": lambda content, randomly: content + b"\n",
    "empty": lambda content, randomly: b"",
    "delete": None,
}


def damage(file, way, randomly):
    """Damage a file in place. Its mode and time remain; nothing is deleted but by `delete`."""
    status, content = file.stat(), file.read_bytes()
    if WAYS[way] is None:
        return file.unlink()
    changed = WAYS[way](content, randomly) if content else b"\n"
    file.chmod(0o644)
    file.write_bytes(changed)
    file.chmod(status.st_mode)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    return None


def dead_pid():
    return next(pid for pid in range(4_000_000, 5_000_000) if not psutil.pid_exists(pid))


def outputs(project):
    """The files of all outputs, by path, and the name of each one's object."""
    lock = yaml.safe_load((project / "dvc.lock").read_text())
    found = {}
    for out in (out for stage in lock["stages"].values() for out in stage["outs"]):
        if out["md5"].endswith(".dir"):
            listing = json.loads((project / object_path(out["md5"])).read_bytes())
            found |= {f"{out['path']}/{one['relpath']}": one["md5"] for one in listing}
        else:
            found[out["path"]] = out["md5"]
    return found


def folders(project):
    """The outputs that are folders, and the names of their objects."""
    lock = yaml.safe_load((project / "dvc.lock").read_text())
    outs = (out for stage in lock["stages"].values() for out in stage["outs"])
    return {out["path"]: out["md5"] for out in outs if out["md5"].endswith(".dir")}


def object_path(md5):
    return f".dvc/cache/files/md5/{md5[:2]}/{md5[2:]}"


def contents(project):
    """The bytes of all outputs."""
    return {path: (project / path).read_bytes() for path in outputs(project)}


class Planter:
    """Plants random damage; `planted` says for each where a report must point, as alternatives."""

    def __init__(self, project: Path, seed: int) -> None:
        self.project, self.randomly = project, random.Random(seed)
        self.files, self.folders = outputs(project), folders(project)
        self.untouched = sorted(self.files)
        self.planted = []

    def _repeatable(self, path):
        return not path.startswith(UNREPEATABLE)

    def _same(self, path):
        """The outputs with the content of this one, which share its object."""
        return [other for other in self.files if self.files[other] == self.files[path]]

    def _take(self, wanted=lambda path: True):
        """An output of which no copy is damaged yet; the copies are not taken again."""
        free = [path for path in self.untouched if wanted(path) and {*self._same(path)} <= {*self.untouched}]
        path = self.randomly.choice(free)
        self.untouched = [other for other in self.untouched if other not in self._same(path)]
        return path

    def _way(self):
        return self.randomly.choice(list(WAYS))

    def output(self):
        path, way = self._take(), self._way()
        damage(self.project / path, way, self.randomly)
        self.planted.append((f"{way} {path}", [path]))

    def object(self):
        path = self._take(lambda path: path != "data/metrics/summary.json")
        way, place = self._way(), object_path(self.files[path])
        damage(self.project / place, way, self.randomly)
        self.planted.append((f"{way} object of {path}", self._same(path) if way == "delete" else [place]))

    def both(self):
        """An output and its object."""
        path = self._take(lambda path: path != "data/metrics/summary.json" and self._repeatable(path))
        place = object_path(self.files[path])
        for file in (path, place):
            damage(self.project / file, self.randomly.choice(["flip", "extend"]), self.randomly)
            self.planted.append((f"copy of {path}", [file]))

    def folder(self):
        free = [path for path in sorted(self.folders) if self._repeatable(f"{path}/")]
        if free and self.randomly.random() < 0.3:
            path = self.randomly.choice(free)
            way, place = self._way(), object_path(self.folders.pop(path))
            damage(self.project / place, way, self.randomly)
            self.planted.append((f"{way} list of {path}", [path] if way == "delete" else [place]))

    def run(self):
        files = sorted((self.project / ".dvc/cache/runs").glob("*/*/*"))
        file, way = self.randomly.choice(files), self.randomly.choice(["truncate", "empty", "delete"])
        damage(file, way, self.randomly)
        self.planted.append((f"{way} run", [str(file.relative_to(self.project))]))

    def rwlock(self):
        contents = ["", "{", '{"write": {"data/x": {"pid"', "[1]"]
        (self.project / ".dvc/tmp/rwlock").write_text(self.randomly.choice(contents))
        self.planted.append(("rwlock", [".dvc/tmp/rwlock"]))

    def scratch(self):
        parent = self.randomly.choice([".", "data", "data/chat", "data/prepared", "data/export", "data/metrics"])
        folder = self.project / parent / ".cache" / str(dead_pid() + self.randomly.randrange(10**6))
        (folder / "model").mkdir(parents=True, exist_ok=True)
        (folder / "model/weights").write_bytes(b"half")
        self.planted.append(("scratch", [str(folder.relative_to(self.project))]))

    def temporary(self):
        folder = self.randomly.choice(sorted((self.project / ".dvc/cache/files/md5").iterdir()))
        file = folder / f".{self.randomly.randrange(10**9)}.tmp"
        file.write_bytes(b"half")
        self.planted.append(("temporary", [str(file.relative_to(self.project))]))

    def lock(self):
        file = self.project / "dvc.lock"
        content = file.read_bytes()
        half = content[: len(content) // 2]
        marked = half + b"\n<<<<<<< HEAD\nx: 1\n=======\ny: 2\n>>>>>>> other\n" + content[len(half) :]
        file.write_bytes(self.randomly.choice([b"", bytes(100), b"stages: [", marked, content[:40]]))
        self.planted.append(("dvc.lock", ["dvc.lock"]))


KINDS = ("output", "object", "both", "folder", "run", "rwlock", "scratch", "temporary")


def plant(project, count, seed):
    """Plant this many damages of all kinds."""
    planter = Planter(project, seed)
    if seed % 4 == 0:
        planter.lock()
    while len(planter.planted) < count:
        kinds = [kind for kind in KINDS if kind != "rwlock" or ("rwlock", [".dvc/tmp/rwlock"]) not in planter.planted]
        getattr(planter, planter.randomly.choice(kinds))()
    return planter.planted


def unreported(planted, lines):
    """The planted damages that no line of a report names; of a folder without its list, the folder is named."""
    named = {line.split(": ")[0] for line in lines}
    return [what for what, places in planted if not any({place, str(Path(place).parent)} & named for place in places)]
