"""What clients of OpenAI's and ollama's APIs can do with `chatmill serve`.

    python tests/benchmarks/clients.py [--list] [--model MODEL] [--embedder MODEL] [--folder FOLDER] [--strict]

Each client does what its documentation says for each feature. A cell is `works`, `refused` where the client raises an
error with the server's message, `–` where the client has no such feature, or `FAILS`. Below the table stands what was
refused or failed. FOLDER (a new one by default) gets the clients: a virtual environment and node_modules. Without the
extra `grammar` in the environment of this script, answers in JSON are refused.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "stages"
PYTHON = (
    "openai",
    "langchain-openai",
    "litellm",
    "mcp",  # for litellm's tools
    "llm",
    "ollama",
    "openapi-spec-validator",
    "prometheus_client",
)
NODE = ("openai", "ai", "@ai-sdk/openai-compatible", "zod")
FEATURES = (
    "models",
    "chat",
    "stream",
    "unknown parameter",
    "n",
    "prompts",
    "calculator",
    "other tool",
    "chosen tool",
    "JSON schema",
    "responses",
    "embeddings",
)


class Cell(NamedTuple):
    """What a client made of a feature, and the error where there was one."""

    client: str
    feature: str
    result: str
    message: str = ""


def install(folder: Path) -> Path:
    """Install what FOLDER lacks of the clients; its Python. Raises CalledProcessError with the line that failed."""
    python = folder / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PYTHON], check=True)
    if shutil.which("npm") and not (folder / "node_modules").exists():
        command = ["npm", "install", "--prefix", folder, "--ignore-scripts", "--no-audit", "--no-fund", "--silent"]
        subprocess.run([*command, *NODE], check=True)
    return python


def run_clients(folder: Path, python: Path, address: str, models: list[str]) -> list[Cell]:
    """The cells of all clients."""
    given = json.dumps({"address": address, "model": models[0], "embedder": models[-1]})
    commands: list[list[str | Path]] = [[python, HERE / "clients_python.py"]]
    if shutil.which("node"):
        program = (HERE / "clients.js").read_text(encoding="utf-8")
        commands.append(["node", "--input-type=module", "-e", program])
    lines: list[str] = []
    for command in commands:
        environment = os.environ | {"LLM_USER_PATH": str(folder / "llm"), "PYTHONPATH": ""}
        environment["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it would ask for a list of prices
        result = subprocess.run(
            command, cwd=folder, env=environment, input=given, stdout=subprocess.PIPE, text=True, check=True
        )
        lines += [line for line in result.stdout.splitlines() if line.startswith("{")]
    return [Cell(**json.loads(line)) for line in lines]


def table(cells: list[Cell]) -> str:
    """A table of clients and features, and the errors below it."""
    clients = list(dict.fromkeys(cell.client for cell in cells if cell.feature in FEATURES))
    results = {(cell.client, cell.feature): cell.result for cell in cells}
    lines = ["| | " + " | ".join(clients) + " |", "|---|" + "---|" * len(clients)]
    for feature in FEATURES:
        row = [results.get((client, feature), "–") for client in clients]
        lines.append(f"| {feature} | {' | '.join(row)} |")
    others = [cell for cell in cells if cell.feature not in FEATURES]
    lines += ["", *(f"{cell.client}, {cell.feature}: {cell.result}" for cell in others)]
    lines += [f"{cell.client}, {cell.feature}: {cell.message}" for cell in cells if cell.message]
    return "\n".join(lines)


def main() -> int:
    """Install the clients, run them, and print the table; 1 where something fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="print the clients, and the lines that install them")
    parser.add_argument("--model", default="data/export/onnx")
    parser.add_argument("--embedder", default="data/model", help="a model of the PyTorch engine")
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--strict", action="store_true", help="of a server that refuses unknown parameters")
    options = parser.parse_args()
    if options.list:
        print(f"pip install {' '.join(PYTHON)}\nnpm install {' '.join(NODE)}")
        return 0
    folder = (options.folder or Path(tempfile.mkdtemp())).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    python = install(folder)
    models = list(dict.fromkeys([options.model, options.embedder]))
    named: list[Any] = [item for model in models for item in ("--model", model)]
    command = [sys.executable, "-m", "chatmill.app.cli", "serve", "--port", "0", "--device", "cpu", *named]
    command += ["--strict"] if options.strict else []
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(SOURCE), os.environ.get("PYTHONPATH", "")])}
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout
        try:
            address = server.stdout.readline().split()[-1]
            cells = run_clients(folder, python, address, models)
        finally:
            server.terminate()
    print(table(cells))
    return int(any(cell.result == "FAILS" for cell in cells))


if __name__ == "__main__":
    sys.exit(main())
