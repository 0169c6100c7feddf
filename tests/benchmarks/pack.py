"""The commands of a packed model's card, as somebody would run them who has fetched the folder; and their answers.

    python tests/benchmarks/pack.py FOLDER [--packages FOLDER] [--llama-server PROGRAM]

FOLDER is what `chatmill pack` wrote. `--packages` has node_modules with @huggingface/transformers, as
tests/benchmarks/runtimes.py says. What is absent is named and left out; ollama and the page are not run here.
"""

import argparse
import json
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).parents[2]
PORT = 8392
ASKED = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 64, "temperature": 0}


def run(command: list[str | Path], folder: Path) -> str:
    """The last line of what a command prints."""
    found = subprocess.run(command, cwd=folder, check=True, stdout=subprocess.PIPE, text=True)
    return found.stdout.strip().splitlines()[-1]


def ask_llama_server(program: Path, line: str, folder: Path) -> str:
    """The answer of llama-server, started as the card says."""
    arguments = [*line.split()[1:], "--port", str(PORT)]
    silent = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen([program, *arguments], cwd=folder, **silent)
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(
        f"http://127.0.0.1:{PORT}/v1/chat/completions", json.dumps(ASKED).encode(), headers
    )
    try:
        for _ in range(100):
            try:
                with urllib.request.urlopen(request, timeout=60) as response:
                    return str(json.load(response)["choices"][0]["message"]["content"])
            except OSError:
                time.sleep(0.1)
        raise RuntimeError(f"{program} does not answer")
    finally:
        process.kill()
        process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--packages", type=Path, metavar="FOLDER")
    parser.add_argument("--llama-server", type=Path, metavar="PROGRAM")
    options = parser.parse_args()
    folder = options.folder.resolve()
    card = (folder / "README.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^(\S[^\n]*):\n\n```(\w+)\n(.*?)\n```$", card, re.DOTALL | re.MULTILINE)
    for title, language, code in blocks:
        ask: Callable[[], str] | None = None
        if language == "python":
            ask = partial(run, [sys.executable, "-c", code], folder)
        elif language == "js" and options.packages:
            there = code.replace("'.'", json.dumps(str(folder)))
            ask = partial(run, ["node", "--input-type=module", "-e", there], options.packages)
        elif code.startswith("chatmill "):
            words = [word.strip("'") for word in re.findall(r"'[^']*'|\S+", code)]
            program = [sys.executable, "-m", "chatmill.app.cli"]
            ask = partial(run, ["env", f"PYTHONPATH={ROOT / 'stages'}", *program, *words[1:]], folder)
        elif code.startswith("llama-server") and options.llama_server:
            ask = partial(ask_llama_server, options.llama_server, code.splitlines()[0], folder)
        print(f"{title}: {ask() if ask else 'not run'}", flush=True)


if __name__ == "__main__":
    main()
