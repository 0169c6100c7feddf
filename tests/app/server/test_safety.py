import asyncio
import sys
from argparse import Namespace
from pathlib import Path
from urllib.parse import quote

import pytest

from chatmill.app.cli import main
from chatmill.app.commands.serve import hosts
from chatmill.app.server import app as assets
from chatmill.app.server.security import MAX_BODY_BYTES
from chatmill.inference.model_loading import load_model
from support.raw_http import CHAT, HELLO, Connection, ask, request, serving_in_thread, write_served
from support.serving import process

FRIEND, STRANGER, KEY, SECRET = "https://friend.example", "https://stranger.example", "a-key-of-mine", "xylophone"
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; manifest-src 'self'; worker-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_served(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def loaded(folder):
    return load_model(folder, "cpu", 1)


@pytest.fixture(scope="module")
def port(loaded):
    """The port of a server without a key, which allows pages of another site."""
    with serving_in_thread(loaded, origins=[FRIEND]) as here:
        yield here.port


@pytest.fixture(scope="module")
def locked(loaded):
    """The port of a server with a key."""
    with serving_in_thread(loaded, key=KEY, origins=[FRIEND]) as here:
        yield here.port


@pytest.mark.parametrize("host", ["localhost", "LocalHost:8000", "127.0.0.1:1", "[::1]", "[::1]:8000"])
def test_names_of_this_machine_are_answered(port, host):
    assert ask(port, "GET", "/v1/models", Host=host).status == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "127.0.0.1.evil.example", "localhost@evil.example", "localhost.", "[::1", "0", "é", ":80"]
)
def test_names_that_are_not_known_are_refused(port, host):
    reply = ask(port, "GET", "/v1/models", Host=host)
    assert reply.status == 421
    assert reply.error["code"] == "bad_host"


def test_a_request_names_one_host(port):
    assert ask(port, "GET", "/", Host="").status in (400, 421)
    assert ask(port, "GET", "/", headers=[("Host", "localhost")]).status == 400
    with Connection(port) as line:
        line.send(b"GET / HTTP/1.0\r\n\r\n")
        assert line.read_response().status == 421


def test_a_name_that_was_allowed_is_known():
    assert {"127.0.0.1", "localhost", "[::1]", "0.0.0.0", "my-machine"} == set(
        hosts(Namespace(host="0.0.0.0", allow_host=["my-machine"]))
    )
    assert "[fe80::1]" in hosts(Namespace(host="fe80::1", allow_host=[]))


def test_the_servers_own_pages_may_ask(port):
    own = {"Origin": f"http://127.0.0.1:{port}", "Sec_Fetch_Site": "same-origin"}
    reply = ask(port, "POST", CHAT, body=HELLO, **own)
    assert reply.status == 200
    assert "access-control-allow-origin" not in reply.headers


@pytest.mark.parametrize("origin", [STRANGER, "null", "http://127.0.0.1:1", "https://127.0.0.1:{port}", "é", "*"])
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_pages_from_elsewhere_may_not_ask(port, origin, method):
    reply = ask(port, method, CHAT if method == "POST" else "/v1/models", Origin=origin.format(port=port))
    assert reply.status == 403
    assert reply.error["code"] == "bad_origin"
    assert "access-control-allow-origin" not in reply.headers


def test_a_page_that_was_allowed_may_ask_and_read(port):
    reply = ask(port, "POST", CHAT, body=HELLO, Origin=FRIEND, Sec_Fetch_Site="cross-site")
    assert reply.status == 200
    assert reply.headers["access-control-allow-origin"] == FRIEND
    assert reply.headers["vary"] == "Origin"
    refused = ask(port, "POST", CHAT, body={}, Origin=FRIEND)
    assert refused.status == 400
    assert refused.headers["access-control-allow-origin"] == FRIEND


def test_a_page_that_was_allowed_is_told_so_before_it_asks_without_a_key(locked):
    reply = ask(locked, "OPTIONS", CHAT, Origin=FRIEND, Access_Control_Request_Method="POST")
    assert (reply.status, reply.body) == (204, b"")
    assert "POST" in reply.headers["access-control-allow-methods"]
    assert {"authorization", "content-type"} == set(reply.headers["access-control-allow-headers"].split(", "))


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_an_image_of_another_page_is_refused_but_a_link_to_ours_is_followed(port, site):
    assert ask(port, "GET", "/v1/models", Sec_Fetch_Site=site).status == 403
    assert ask(port, "GET", "/assets/shared/style.css", Sec_Fetch_Site=site).status == 403
    assert ask(port, "GET", "/health", Sec_Fetch_Site=site).status == 200


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer ", f"Bearer {KEY}x", KEY, f"Basic {KEY}", f"Bearer {KEY[:-1]}é", "Bearer \xff"]
)
def test_without_the_key_nothing_is_told(locked, given):
    gets = [("GET", "/v1/models"), ("GET", "/v1/models/tiny"), ("GET", "/runs.json"), ("GET", "/nowhere")]
    posts = [CHAT, "/v1/completions", "/tokens", "/tokenize", "/detokenize"]
    for method, path in [*gets, *(("POST", path) for path in posts)]:
        reply = ask(locked, method, path, body=HELLO if method == "POST" else None, Authorization=given)
        assert (reply.status, reply.error["code"], reply.headers["www-authenticate"]) == (
            401,
            "invalid_api_key",
            "Bearer",
        )


@pytest.mark.parametrize(
    "path", ["/assets/../v1/models", "/assets/%2e%2e/v1/models", "//v1/models", "/v1/models?/assets/"]
)
def test_no_other_spelling_of_a_path_goes_round_the_key(locked, path):
    assert b"tiny" not in ask(locked, "GET", path).body


def test_with_the_key_all_is_told(locked):
    assert ask(locked, "GET", "/v1/models", Authorization=f"Bearer {KEY}").json["data"][0]["id"] == "tiny"
    assert ask(locked, "POST", CHAT, body=HELLO, Authorization=f"bearer {KEY}").status == 200


def test_pages_and_what_they_are_made_of_need_no_key(locked):
    for path in ("/", "/runs", "/health", "/assets/shared/style.css"):
        assert ask(locked, "GET", path).status == 200


def test_a_key_may_have_any_letters(loaded):
    as_sent = "schlüssel".encode().decode("latin-1")  # of whose characters each is a byte
    with serving_in_thread(loaded, key="schlüssel") as here:
        assert ask(here.port, "GET", "/v1/models", Authorization=f"Bearer {as_sent}").status == 200
        assert ask(here.port, "GET", "/v1/models", Authorization="Bearer schlussel").status == 401


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_others_are_not_let_in_without_a_key(monkeypatch, capsys, host):
    monkeypatch.delenv("CHATMILL_API_KEY", raising=False)
    for key in ([], ["--api-key", ""]):
        assert main(["serve", "--host", host, *key]) == 1
        assert "CHATMILL_API_KEY" in capsys.readouterr().err


def test_a_proxy_is_an_address(capsys):
    assert main(["serve", "--proxy", "example.org"]) == 1
    assert "--proxy example.org: expected an IP address, such as 192.0.2.7" in capsys.readouterr().err


def kinds_of_answers(port):
    """A request for each kind of response, by status or path."""
    return {
        200: request(port, "POST", CHAT, body=HELLO | {"stream": True}),
        204: request(port, "OPTIONS", CHAT, Origin=FRIEND),
        400: request(port, "POST", CHAT, body={}),
        403: request(port, "GET", "/", Origin=STRANGER),
        404: request(port, "GET", "/nowhere"),
        405: request(port, "PUT", CHAT),
        413: request(port, "POST", CHAT, Content_Length=str(MAX_BODY_BYTES + 1)),
        421: request(port, "GET", "/", Host="evil.example"),
        "/": request(port, "GET", "/"),
        "/assets/shared/style.css": request(port, "GET", "/assets/shared/style.css"),
        "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
        431: request(port, "GET", "/", headers=[("A", "a" * 4000)] * 10),
        "headers without an end": b"GET / HTTP/1.1\r\nA: " + b"a" * 40_000,
    }


@pytest.mark.parametrize("kind", kinds_of_answers(0))
def test_every_answer_protects_the_browser(port, kind):
    with Connection(port) as line:
        line.send(kinds_of_answers(port)[kind])
        reply = line.read_response()
    assert reply.status == (kind if isinstance(kind, int) else 200 if kind.startswith("/") else 400)
    assert reply.headers | HEADERS == reply.headers
    assert reply.status < 400 or reply.error


def test_an_answer_after_a_mistake_of_ours_protects_the_browser_too(loaded, capfd):
    with serving_in_thread(loaded) as here:
        here.models.describe = None
        reply = ask(here.port, "GET", "/v1/models")
    assert (reply.status, reply.error["type"]) == (500, "server_error")
    assert reply.headers | HEADERS == reply.headers
    assert "TypeError" in capfd.readouterr().err


PATHS = [
    "/assets/../chat.html",
    "/assets/..%2fapp.py",
    "/assets/%2e%2e%2fapp.py",
    "/assets/%2e%2e/app.py",
    "/assets//etc/passwd",
    "/assets/%2fetc%2fpasswd",
    "/assets/shared/style.css%00.html",
    "/assets/shared/style.css/",
    "/assets/./shared/style.css",
    "/assets/shared/STYLE.CSS",
    "/assets/",
    "/assets",
    "/assets/..\\app.py",
    "/assets/chat",
    "/assets/chat/",
    "/assets/chat/../../app.py",
    "/assets/chat/..%2f..%2fapp.py",
    "/assets/chat/../shared/style.css",
    "/assets/chat%5c..%5cshared/style.css",
    "/assets//shared/style.css",
    "/assets/vendor/README.md",
    "/assets/%c0%ae%c0%ae/app.py",
    "//etc/passwd",
    "/..%2f..%2fetc%2fpasswd",
    "file:///etc/passwd",
    "http://127.0.0.1/assets/../app.py",
    "/runs/..%2f..%2f..%2fetc%2fpasswd/report",
    "/runs/%2fetc%2fpasswd/curve.json",
]


@pytest.fixture
def opened():
    """The names of the files that are opened during a test."""
    names, watching = [], [True]  # an audit hook cannot be removed
    sys.addaudithook(lambda event, given: names.append(str(given[0])) if watching and event == "open" else None)
    yield names
    watching.clear()


def test_no_path_of_a_request_reaches_the_file_system(port, opened):
    for path in PATHS:
        reply = ask(port, "GET", path)
        assert reply.status in (403, 404), path
        assert b"root:" not in reply.body
    for name in ("/etc/passwd", "../../etc/passwd", "data/model", "~", "tiny/../tiny", "tiny\0", str(Path.cwd())):
        assert ask(port, "POST", CHAT, body=HELLO | {"model": name}).error["code"] == "model_not_found"
        assert ask(port, "GET", f"/v1/models/{quote(name)}").status == 404
    assert opened == []


def test_assets_are_those_that_were_there_at_the_start(monkeypatch, tmp_path, loaded):
    (tmp_path / "static/deeper").mkdir(parents=True)
    (tmp_path / "static/a.css").write_text("a{}")
    (tmp_path / "static/deeper/c.css").write_text("c{}")
    (tmp_path / "static/notes.txt").write_text("not a type that is served")
    monkeypatch.setattr(assets, "files", lambda _: tmp_path)
    with serving_in_thread(loaded) as here:
        (tmp_path / "static/a.css").write_text("b{}")
        (tmp_path / "static/b.css").symlink_to("/etc/passwd")
        (tmp_path / "static/deeper/d.css").write_text("d{}")
        assert ask(here.port, "GET", "/assets/a.css").body == b"a{}"
        assert ask(here.port, "GET", "/assets/deeper/c.css").body == b"c{}"
        assert ask(here.port, "GET", "/assets/deeper/d.css").status == 404
        assert ask(here.port, "GET", "/assets/b.css").status == 404
        assert ask(here.port, "GET", "/assets/notes.txt").status == 404


def say_a_secret(port):
    """The replies to requests of every kind, each of which contains the secret."""
    messages = [{"role": "user", "content": SECRET}]
    ids = ask(port, "POST", "/tokenize", body={"prompt": SECRET}).json["tokens"]
    for path, body in (
        (CHAT, {"messages": messages, "max_tokens": 4}),
        (CHAT, {"messages": messages, "stream": True, "stop": SECRET, "logprobs": True, "max_tokens": 4}),
        (CHAT, {"messages": [*messages, {"role": SECRET, "content": SECRET}]}),
        (CHAT, {"messages": messages * 100}),
        (CHAT, {"messages": messages, SECRET: SECRET}),
        (CHAT, {"messages": SECRET, "model": SECRET, "temperature": SECRET}),
        (CHAT, SECRET.encode()),
        ("/v1/completions", {"prompt": SECRET, "echo": True, "max_tokens": 4}),
        ("/tokenize", {"prompt": SECRET}),
        ("/detokenize", {"tokens": ids}),
        ("/tokens", {"ids": ids}),
    ):
        yield ask(port, "POST", path, body=body)
    with Connection(port) as line:
        line.send(SECRET.encode() + b"\r\n" + request(port, "POST", CHAT, body={"messages": messages}))
        yield line.read_response()


@pytest.mark.parametrize("more", [[], ["-v"]])
def test_nothing_that_is_said_stands_in_the_terminal(folder, more):
    with process("--model", folder, "--device", "cpu", "--threads", 1, *more) as (address, server):
        statuses = [reply.status for reply in say_a_secret(int(address.rpartition(":")[2]))]
        server.terminate()
        output = "".join(server.communicate())
    assert statuses.count(200) == 7
    assert SECRET not in output
    assert ("POST" in output) == bool(more)


def test_nothing_that_is_said_stands_in_the_terminal_where_the_server_fails(loaded, capfd):
    def fail(given, *_):
        raise KeyError(f"{given}")

    with serving_in_thread(loaded, verbose=True) as here:
        prompt_builder = asyncio.run(here.models.get("tiny")).prompt_builder
        for name in ("prompt_ids", "truncate", "encode"):
            setattr(prompt_builder, name, fail)
        assert 500 in [reply.status for reply in say_a_secret(here.port)]
    output = "".join(capfd.readouterr())
    assert "KeyError" in output
    assert SECRET not in output
