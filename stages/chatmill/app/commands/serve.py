"""Serve models: a chat page in the browser, and an API that is compatible with OpenAI's."""

import argparse
import hashlib
import os
import threading
import webbrowser
from ipaddress import ip_address
from pathlib import Path

from starlette.responses import Response
from starlette.routing import Route

from chatmill.app import arguments
from chatmill.app.arguments import check_range
from chatmill.app.inputs import read_numbered_chat
from chatmill.app.named_models import MODEL_FOLDERS, default_model
from chatmill.app.server.app import Server, bind_socket, create_app
from chatmill.app.server.models import Models, ServingOptions
from chatmill.app.server.runs import Runs
from chatmill.app.terminal.terminal_chat import to_json_line
from chatmill.app.terminal.text import notify, plural

API_KEY_VARIABLE = "CHATMILL_API_KEY"
LOCAL_HOSTS = ("127.0.0.1", "localhost", "[")  # the last is what starlette reads of [::1]
MAX_SECONDS = 86_400
EPILOG = """examples:
  chatmill serve                                        the model of this folder, on http://127.0.0.1:8000
  chatmill serve --open                                 the same, and its page opens in the browser
  chatmill serve --open --load "my chat.jsonl"          … with a chat that `chatmill chat` saved
  chatmill serve --model data/model --model data/export/onnx
  CHATMILL_API_KEY=… chatmill serve --host 0.0.0.0 --allow-host my-machine
  curl http://127.0.0.1:8000/v1/chat/completions -H "Content-Type: application/json" \\
       -d '{"messages": [{"role": "user", "content": "What is 48 times 7?"}]}'
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    add = command.add_argument_group("model").add_argument
    help_for_model = f"folder, file, or name of a run (default: {MODEL_FOLDERS[0]})"
    arguments.add_repeated(add, "-m", "--model", metavar="PATH", help=help_for_model)
    arguments.add_loading(add)
    add = command.add_argument_group("network").add_argument
    add("--host", default="127.0.0.1", help="address to listen on (default: %(default)s: this machine only)")
    add("--port", type=int, default=8000, help="0: any free port (default: %(default)s)")
    arguments.add_repeated(add, "--allow-host", metavar="NAME", help="another name of this server")
    arguments.add_repeated(add, "--allow-origin", metavar="URL", help="another site whose pages may send requests")
    key_help = f"key that requests must send (better set in {API_KEY_VARIABLE})"
    add("--api-key", default=os.environ.get(API_KEY_VARIABLE), metavar="KEY", help=key_help)
    add = command.add_argument_group("limits").add_argument
    add("--parallel", type=int, default=16, metavar="N", help="answers at once, of each model (default: %(default)s)")
    add("--queue", type=int, default=64, metavar="N", help="waiting requests, of each model (default: %(default)s)")
    add("--time-limit", type=float, default=600, metavar="S", help="seconds for an answer (default: %(default)s)")
    grace_help = "seconds that running answers get when the server is stopped (default: %(default)s)"
    add("--grace", type=float, default=10, metavar="S", help=grace_help)
    arguments.add_answers(command.add_argument_group("defaults of sampling, which a request can override").add_argument)
    add = command.add_argument_group("chat page").add_argument
    add("--open", action="store_true", help="open the chat page in a browser")
    add("--load", metavar="FILE", help="open it with a saved chat; FILE may end with its number, as in 'FILE 2'")
    command.add_argument("-v", "--verbose", action="store_true", help="log every request, but not its content")


def run(options: argparse.Namespace) -> None:
    check(options)
    chats = [load_chat(options.load)] if options.load is not None else []
    runs = Runs(Path.cwd())
    serving = ServingOptions(
        arguments.loading(options),
        options.parallel,
        options.queue,
        arguments.sampling(options),
        options.max_tokens,
        options.time_limit,
    )
    models = Models(options.model or [str(default_model())], serving, runs.model_names)
    with bind_socket(options.host, options.port) as bound:
        for model in models.load_all():
            engine, slots = model.loaded.engine, plural(model.scheduler.num_slots, "answer")
            size = f"{engine.num_bytes / 1e6:.1f} MB, context {engine.context:,}, {slots} at once"
            notify(f"{model.name}: {engine.name} on {engine.device}, {size}")
        hosts = [*LOCAL_HOSTS, options.host, *options.allow_host]  # of requests
        app = create_app(models, runs, hosts, options.allow_origin, options.api_key or None, *chats)
        host, port = bound.getsockname()[:2]
        page = f"http://{f'[{host}]' if ':' in host else host}:{port}"
        page += "".join(f"/?load={chat.path.removeprefix('/chats/')}" for chat in chats)
        print(f"chatmill: {page}", flush=True)
        if options.open:
            threading.Thread(target=open_page, args=[page], daemon=True).start()
        Server(app, models, grace=options.grace, verbose=options.verbose).run([bound])


def load_chat(argument: str) -> Route:
    """The route of a saved chat, by an id under which a browser keeps it: 24 digits, the same for the same messages."""
    _, conversation = read_numbered_chat(argument)
    if conversation[-1].role == "user":
        notify("the last message has no answer and was dropped")
    line = to_json_line(conversation)
    chat_id = hashlib.sha256(line.encode()).hexdigest()[:24]
    return Route(f"/chats/{chat_id}", Response(line, media_type="application/jsonl"), methods=["GET"])


def open_page(url: str) -> None:
    """Open a page in the user's browser, or say that there is none; a browser of the terminal ends with the call."""
    if not webbrowser.open(url):
        notify(f"no browser was found: open {url} in one")


def check(options: argparse.Namespace) -> None:
    arguments.check_answers(options)
    check_range("--parallel", options.parallel, 1, 1024)
    check_range("--queue", options.queue, 0)
    check_range("--port", options.port, 0, (1 << 16) - 1)
    check_range("--time-limit", options.time_limit, 0, MAX_SECONDS)
    check_range("--grace", options.grace, 0, MAX_SECONDS)
    if not is_loopback(options.host) and not options.api_key:
        raise ValueError(
            f"--host {options.host}: other machines can reach it: set an API key with {API_KEY_VARIABLE} or --api-key"
        )


def is_loopback(host: str) -> bool:
    try:
        return ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
