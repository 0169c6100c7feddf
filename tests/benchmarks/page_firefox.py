"""A page of `chatmill page` in Firefox, driven by WebDriver BiDi: it is opened from disk, chats, and shows its tokens.

    python tests/benchmarks/page_firefox.py [MODEL] [--picture FILE] [--firefox PROGRAM]

MODEL is a folder of a model (default: data/model). Needs Firefox (Debian's firefox-esr) and the package `websockets`.
The answers are compared with those of PyTorch on the weights of the page, and no other address than those of the page
may be asked for.
"""

import argparse
import base64
import json
import subprocess
import sys
import tempfile
import time
from collections import deque
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "stages"))
sys.path.insert(0, str(Path(__file__).parents[1]))

from websockets.sync.client import ClientConnection, connect

from chatmill.app.commands.page import build_page
from chatmill.app.page.content import read_content
from chatmill.inference.chat_session import ChatSession
from chatmill.inference.model_loading import load_model
from support.page_engine import dequantized

QUESTIONS = ["Hi!", "What is 12*34?", "Who are you?", "Tell me about your day.", "Good night."]
MAX_TOKENS = 256  # the page's default
READY = "document.documentElement.dataset.ready ?? ''"
ASK = """(() => {
  document.getElementById("new-chat").click();
  return new Promise((resolve) => setTimeout(() => {
    const message = document.getElementById("message");
    message.value = %s;
    message.dispatchEvent(new Event("input", { bubbles: true }));
    document.getElementById("composer").requestSubmit();
    const wait = () => {
      const stats = document.querySelector(".exchange:last-of-type .stats");
      if (!stats?.childElementCount) return setTimeout(wait, 20);
      const answer = stats.closest(".answer");
      resolve(JSON.stringify({ text: answer.querySelector(".content").innerText, stats: stats.innerText }));
    };
    wait();
  }, 200));
})()"""
TOKENS = """new Promise((resolve) => {
  [...document.querySelectorAll(".actions button")].find((one) => one.textContent === "Tokens").click();
  const wait = () => {
    const count = document.querySelectorAll(".tokens .token").length;
    if (count) resolve(count);
    else setTimeout(wait, 20);
  };
  wait();
})"""


class Firefox:
    """A session of WebDriver BiDi, and the page that it has open."""

    def __init__(self, socket: ClientConnection) -> None:
        self._socket, self._count = socket, 0
        self.events: deque[dict[str, Any]] = deque()
        self.call("session.new", {"capabilities": {}})
        self.call("session.subscribe", {"events": ["log.entryAdded", "network.beforeRequestSent"]})
        self.context = self.call("browsingContext.getTree", {})["contexts"][0]["context"]

    def call(self, method: str, parameters: dict[str, Any]) -> Any:
        """The result of a command; events that come before it are added to `events`."""
        self._count += 1
        self._socket.send(json.dumps({"id": self._count, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv(timeout=120))
            if message.get("id") == self._count:
                if message["type"] == "error":
                    raise SystemExit(f"{method}: {message['message']}")
                return message["result"]
            self.events.append(message)

    def evaluate(self, expression: str) -> Any:
        """The value of an expression, when its promise is kept."""
        target = {"target": {"context": self.context}, "awaitPromise": True, "expression": expression}
        found = self.call("script.evaluate", target)
        if found["type"] == "exception":
            raise SystemExit(found["exceptionDetails"]["text"])
        return found["result"].get("value")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, nargs="?", default=Path("data/model"))
    parser.add_argument("--picture", type=Path)
    parser.add_argument("--firefox", default="firefox-esr")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        file = Path(scratch) / "chat.html"
        file.write_bytes(build_page(options.model, options.model.name))
        command = [options.firefox, "--headless", "--no-remote", "--profile", scratch, "--remote-debugging-port", "0"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                assert process.stderr is not None
                address = next(line.split()[-1] for line in process.stderr if "WebDriver BiDi listening" in line)
                with connect(f"{address}/session", max_size=None) as socket:
                    measure(Firefox(socket), file, options.model, options.picture)
            finally:
                process.terminate()


def measure(firefox: Firefox, file: Path, model: Path, picture: Path | None) -> None:
    """Print when the page is ready, its answers beside PyTorch's, and what it asked for."""
    firefox.call("browsingContext.navigate", {"context": firefox.context, "url": f"file://{file}", "wait": "complete"})
    deadline = time.monotonic() + 30
    while not (ready := firefox.evaluate(READY)) and time.monotonic() < deadline:
        time.sleep(0.05)
    print("| what | Firefox |\n|---|---|")
    print(f"| ready, ms after the page was opened | {float(ready or 'nan'):.0f} |")
    found = [json.loads(firefox.evaluate(ASK % json.dumps(question))) for question in QUESTIONS]
    texts = [one["text"].split("\n")[-1].strip() for one in found]
    equal = sum(text == own for text, own in zip(texts, own_answers(model), strict=True))
    print(f"| answers equal to PyTorch's | {equal} of {len(QUESTIONS)} |")
    print(f"| last answer | {' · '.join(found[-1]['stats'].splitlines())} |")
    print(f"| tokens in the view | {firefox.evaluate(TOKENS)} |")
    if picture:
        shot = firefox.call("browsingContext.captureScreenshot", {"context": firefox.context})
        picture.write_bytes(base64.b64decode(shot["data"]))
    urls = [
        event["params"]["request"]["url"] for event in firefox.events if event["method"] == "network.beforeRequestSent"
    ]
    logged = [event["params"]["text"] for event in firefox.events if event["method"] == "log.entryAdded"]
    foreign = [url for url in urls if not url.startswith((f"file://{file}", "blob:", "data:", "about:"))]
    print(f"| other addresses, messages of the console | {foreign}, {logged} |")


def own_answers(model: Path) -> list[str]:
    """The text of PyTorch's greedy answers on the weights of the page."""
    loaded = load_model(model, device="cpu", threads=1)
    loaded.engine.model.load_state_dict(dequantized(read_content(model, "")))
    session = ChatSession(
        loaded.engine, loaded.tokenizer, loaded.template, loaded.stop_ids, loaded.tools, max_tokens=MAX_TOKENS
    )
    answers = []
    for question in QUESTIONS:
        session.clear()
        answers.append("".join(session.ask(question)).split("\n")[-1].strip())
    return answers


if __name__ == "__main__":
    main()
