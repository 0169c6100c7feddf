"""Serve models: a page to chat with them in the browser, and an API that OpenAI's clients speak."""

import argparse
import os
import socket
from dataclasses import fields
from pathlib import Path

from chatmill.app.experiments import MODEL_FOLDERS, default_model
from chatmill.app.server.app import Server, bind_socket, create_app
from chatmill.app.server.models import Model, Models, ServingOptions
from chatmill.app.server.runs import Runs
from chatmill.app.server.security import is_loopback
from chatmill.app.terminal.formatting import plural
from chatmill.app.terminal.settings import MAX_THREADS, check_positive
from chatmill.app.terminal.terminal_chat import notify
from chatmill.inference.sampler import Sampling

API_KEY_VARIABLE = "CHATMILL_API_KEY"
LOCAL_HOSTS = ("127.0.0.1", "localhost", "[::1]")
EXAMPLES = """examples:
  chatmill serve                                        the model of this folder, on http://127.0.0.1:8000
  chatmill serve --model data/model --model data/export/onnx
  CHATMILL_API_KEY=… chatmill serve --host 0.0.0.0 --allow-host my-machine
  curl http://127.0.0.1:8000/v1/chat/completions -H "Content-Type: application/json" \\
       -d '{"messages": [{"role": "user", "content": "What is 48 times 7?"}]}'
"""


def add_arguments(command: argparse.ArgumentParser) -> None:
    """The options of `chatmill serve`."""
    command.formatter_class, command.epilog = argparse.RawDescriptionHelpFormatter, EXAMPLES
    add = command.add_argument_group("who answers").add_argument
    add(
        "-m",
        "--model",
        action="append",
        metavar="PATH",
        help=f"a folder, a file, or a run; may be repeated (default: {MODEL_FOLDERS[0]})",
    )
    add("--tokenizer", type=Path, metavar="PATH", help="another tokenizer than the one that is with the model")
    add("--template", metavar="NAME", help="chatml, markers, llama3 … (default: the model's own)")
    add("--trust-tokenizer", action="store_true", help="also where the model was trained with another")
    add("--device", default="auto", help="auto, cpu, cuda, cuda:1, mps … (default: the fastest that is there)")
    add("--threads", type=int, metavar="N", help="of the processor (default: one less than there are cores)")
    add = command.add_argument_group("who may ask").add_argument
    add("--host", default="127.0.0.1", help="address to listen at (default: %(default)s: this machine alone)")
    add("--port", type=int, default=8000, help="0: any that is free (default: %(default)s)")
    add(
        "--allow-host", action="append", default=[], metavar="NAME", help="another name of this server; may be repeated"
    )
    add(
        "--allow-origin",
        action="append",
        default=[],
        metavar="URL",
        help="a page elsewhere that may ask; may be repeated",
    )
    add(
        "--api-key",
        default=os.environ.get(API_KEY_VARIABLE),
        metavar="KEY",
        help=f"who asks must name it (better: {API_KEY_VARIABLE})",
    )
    add = command.add_argument_group("how much at once").add_argument
    add("--parallel", type=int, default=16, metavar="N", help="answers of a model at once (default: %(default)s)")
    add("--queue", type=int, default=64, metavar="N", help="requests that may wait for one (default: %(default)s)")
    add("--time-limit", type=float, default=600, metavar="S", help="seconds for an answer (default: %(default)s)")
    add(
        "--grace",
        type=float,
        default=10,
        metavar="S",
        help="seconds for answers to end when it is stopped (default: %(default)s)",
    )
    add = command.add_argument_group("what holds where a request does not say it").add_argument
    add("--max-tokens", type=int, default=256, metavar="N", help="of an answer (default: %(default)s)")
    for field in fields(Sampling):
        if field.name != "seed":
            option = f"--{field.name.replace('_', '-')}"
            add(option, type=type(field.default), default=field.default, metavar="N", help="as for `chatmill chat`")
    command.add_argument("-v", "--verbose", action="store_true", help="tell of every request, but not what was said")


def run(options: argparse.Namespace) -> None:
    """Load the models, and answer until stopped."""
    check(options)
    runs = Runs(Path.cwd())
    models = Models(options.model or [str(default_model())], serving_options(options), runs.model_names)
    with bind_socket(options.host, options.port) as bound:
        for model in models.load_all():
            notify(f"{model.name}: {described(model)}")
        app = create_app(models, runs, hosts(options), options.allow_origin, options.api_key or None)
        print(f"chatmill: {address(bound)}", flush=True)
        Server(app, models, grace=options.grace, verbose=options.verbose).run([bound])


def check(options: argparse.Namespace) -> None:
    """Raise ValueError for what cannot be meant."""
    check_positive("--max-tokens", options.max_tokens)
    check_positive("--parallel", options.parallel, 1024)
    if options.queue < 0:
        raise ValueError(f"--queue {options.queue}: expected 0 or more")
    if not 0 <= options.port < 1 << 16:
        raise ValueError(f"--port {options.port}: expected 0 to 65535")
    for name in ("time_limit", "grace"):
        if not 0 <= getattr(options, name) <= 86_400:
            raise ValueError(f"--{name.replace('_', '-')} {getattr(options, name)}: expected 0 to 86400 seconds")
    if options.threads is not None:
        check_positive("--threads", options.threads, MAX_THREADS)
    if not is_loopback(options.host) and not options.api_key:
        raise ValueError(
            f"--host {options.host}: others can reach it: set a key in {API_KEY_VARIABLE}, or with --api-key"
        )


def serving_options(options: argparse.Namespace) -> ServingOptions:
    """What holds for every model."""
    names = [field.name for field in fields(Sampling) if field.name != "seed"]
    sampling = Sampling(**{name: getattr(options, name) for name in names})
    named = {"tokenizer": options.tokenizer, "template": options.template, "trust_tokenizer": options.trust_tokenizer}
    return ServingOptions(
        named | {"device": options.device, "threads": options.threads},
        options.parallel,
        options.queue,
        sampling,
        options.max_tokens,
        options.time_limit,
    )


def hosts(options: argparse.Namespace) -> list[str]:
    """The names that a request may ask for."""
    bound = f"[{options.host}]" if ":" in options.host else options.host
    return [*LOCAL_HOSTS, bound, *options.allow_host]


def address(bound: socket.socket) -> str:
    """Where a socket is reached by a browser."""
    host, port = bound.getsockname()[:2]
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


def described(model: Model) -> str:
    """A model in words."""
    engine = model.loaded.engine
    return (
        f"{engine.name} on {engine.device}, {engine.num_bytes / 1e6:.1f} MB, context {engine.context:,}, "
        f"{plural(model.scheduler.num_slots, 'answer')} at once"
    )
