"""HTTP as bytes on a socket, for requests that no client sends, and a server in this process."""

import asyncio
import json
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import parse_headers
from pathlib import Path
from threading import Thread
from time import monotonic, sleep
from typing import Any, NamedTuple

from chatmill.app.commands.serve import LOCAL_HOSTS
from chatmill.app.server.app import Server, bind_socket, create_app
from chatmill.app.server.models import Models, ServingOptions
from chatmill.app.server.runs import Runs
from chatmill.inference.model_loading import LoadedModel
from chatmill.inference.sampler import Sampling
from export_onnx import main as export
from support.tiny import write_model

TIMEOUT_SECONDS = 60  # after which a silent server is considered hung
OPTIONS = ServingOptions("cpu", 4, 8, Sampling(), 32, 60, strict=True)
CHAT = "/v1/chat/completions"
HELLO = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4}
CHUNKED = {"Content_Length": "", "Transfer_Encoding": "chunked"}  # of `request`


class Response(NamedTuple):
    """A server's response; the names of headers are in lower case."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body, parsed as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error; asserts that it has the fields of an OpenAI error, or is a text as in ollama's API."""
        error = self.json["error"]
        if isinstance(error, str):
            return {"message": error, "type": "invalid_request_error"}
        assert set(error) == {"message", "type", "param", "code"}, error
        assert isinstance(error["message"], str) and error["message"], error
        return error

    @property
    def events(self) -> list[Any]:
        """The events of a complete stream."""
        *events, end = [line[6:] for line in self.body.decode().split("\n") if line.startswith("data: ")]
        if end != "[DONE]":  # of /v1/responses
            assert json.loads(end)["type"] in ("response.completed", "response.incomplete"), end
            events.append(end)
        return [json.loads(event) for event in events]


class Connection:
    """One TCP connection to a server."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
        self._file = self.socket.makefile("rb")

    def __enter__(self) -> "Connection":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self.socket.close()

    def send(self, data: bytes, *, last: bool = False) -> None:
        """Send bytes; a connection that the server has closed is no error."""
        with suppress(ConnectionError):
            self.socket.sendall(data)
            if last:
                self.socket.shutdown(socket.SHUT_WR)

    def read_response(self, method: str = "POST") -> Response | None:
        """The next response; None if the connection ends without one."""
        try:
            if not (line := self._file.readline()):
                return None
            status = int(line.split()[1])
            headers = {name.lower(): value for name, value in parse_headers(self._file).items()}
            if status == 100:
                return self.read_response(method)
            return Response(status, headers, b"" if method == "HEAD" or status == 204 else self._body(headers))
        except ConnectionError:
            return None

    def read_line(self) -> bytes:
        """The next line."""
        return self._file.readline()

    def _body(self, headers: dict[str, str]) -> bytes:
        if headers.get("transfer-encoding") != "chunked":
            return self._file.read(int(headers["content-length"])) if "content-length" in headers else self._file.read()
        body = b""
        while size := int(self._file.readline(), 16):
            body += self._file.read(size)
            self._file.readline()
        self._file.readline()
        return body


def request(
    port: int, method: str, path: str, *, body: object = None, headers: Sequence[tuple[str, str]] = (), **more: str
) -> bytes:
    """A request as bytes; the headers in `more` replace the default ones."""
    data = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    named = {"Host": f"127.0.0.1:{port}", "Content-Length": str(len(data))} | {
        name.replace("_", "-"): value for name, value in more.items()
    }
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in [*named.items(), *headers] if value)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + data


def ask(port: int, method: str, path: str, **parts: Any) -> Response:
    """The response to one request. Raises AssertionError if there is none."""
    with Connection(port) as line:
        line.send(request(port, method, path, **parts))
        reply = line.read_response(method)
    assert reply is not None, f"{method} {path}: no reply"
    return reply


def write_served(folder: Path) -> Path:
    """Write a tiny model and export it; returns the folder of the export."""
    write_model(folder / "model")
    export(folder / "model", folder / "onnx", quantize=[])
    return folder / "onnx"


class LocalServer(NamedTuple):
    """A server in this process."""

    port: int
    models: Models
    server: Server

    @property
    def connections(self) -> int:
        """The number of open connections."""
        return len(self.server.server_state.connections)


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait until a condition holds. Raises AssertionError after TIMEOUT_SECONDS."""
    end = monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert monotonic() < end, "the condition did not become true"
        sleep(0.01)


@contextmanager
def serving_in_thread(
    loaded: LoadedModel,
    *,
    key: str | None = None,
    origins: Sequence[str] = (),
    proxies: Sequence[str] = (),
    verbose: bool = False,
    buffer: int = 0,
) -> Iterator["LocalServer"]:
    """Run a server in a thread of this process. `buffer`: size of the socket's send buffer; 0: the default."""
    models = Models(["tiny"], OPTIONS)
    models.add("tiny", loaded)
    with bind_socket("127.0.0.1", 0) as bound:
        if buffer:
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        app = create_app(models, Runs(Path.cwd()), LOCAL_HOSTS, origins, key)
        server = Server(app, models, grace=0, verbose=verbose, proxies=proxies)
        thread = Thread(target=asyncio.run, args=(server.serve([bound]),))
        thread.start()
        bound.listen()  # until the thread accepts connections, they wait
        try:
            yield LocalServer(bound.getsockname()[1], models, server)
        finally:
            server.should_exit = True
            thread.join()
