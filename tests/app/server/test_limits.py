import asyncio
import json
import socket
from contextlib import ExitStack
from time import sleep

import pytest
from uvicorn.protocols.http import h11_impl

from chatmill.app.server import http_protocol, request_body
from chatmill.app.server.security import MAX_BODY_BYTES, client_network
from chatmill.inference.model_loading import load_model
from support.raw_http import CHAT, CHUNKED, HELLO, Connection, ask, request, serving_in_thread, wait_until, write_served


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load_model(write_served(tmp_path_factory.mktemp("served")), "cpu", 1)


@pytest.fixture(scope="module")
def port(loaded):
    with serving_in_thread(loaded) as here:
        yield here.port


def test_a_body_over_the_limit_is_refused_before_it_is_sent(port):
    assert ask(port, "POST", CHAT, Content_Length=str(MAX_BODY_BYTES + 1)).status == 413
    assert ask(port, "POST", CHAT, Content_Length="9" * 19).status == 413
    assert ask(port, "POST", CHAT, Content_Length="9" * 5000).status == 400


def test_a_body_in_chunks_is_refused_where_it_passes_the_limit(port):
    with Connection(port) as line:
        line.send(
            request(port, "POST", CHAT, **CHUNKED) + b"%x\r\n" % (MAX_BODY_BYTES + 1) + b" " * (MAX_BODY_BYTES + 1)
        )
        assert line.read_response().error["code"] == "too_large"


def test_a_body_of_the_longest_is_read(port):
    body = json.dumps({"prompt": "x"}).encode()
    assert ask(port, "POST", "/tokenize", body=body + b" " * (MAX_BODY_BYTES - len(body))).json["count"] == 1


def test_a_body_that_does_not_come_is_waited_for_some_time(port, monkeypatch):
    monkeypatch.setattr(request_body, "BODY_SECONDS", 0.2)
    for length in ({"Content_Length": "10"}, CHUNKED):
        with Connection(port) as line:
            line.send(request(port, "POST", CHAT, **length))
            reply = line.read_response()
            assert (reply.status, reply.headers["connection"]) == (408, "close")
            assert line.read_response() is None


@pytest.mark.parametrize(("rate", "status"), [(1, 200), (1 << 30, 408)])
def test_a_body_that_comes_slowly_may_take_longer_the_longer_it_is(port, monkeypatch, rate, status):
    monkeypatch.setattr(request_body, "BODY_SECONDS", 0.3)
    monkeypatch.setattr(request_body, "BODY_RATE", rate)
    whole = request(port, "POST", "/tokenize", body={"prompt": "Hello"})
    with Connection(port) as line:
        for start in range(0, len(whole), 2):
            line.send(whole[start : start + 2])
            sleep(0.04 if start > len(whole) - 20 else 0)
        assert line.read_response().status == status


@pytest.mark.parametrize("beginning", [b"", b"G", b"GET / HTTP/1.1\r\nHost: localhost\r\n"])
def test_headers_that_do_not_come_are_waited_for_some_time(port, monkeypatch, beginning):
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 0.2)
    with Connection(port) as line:
        line.send(beginning)
        assert line.read_response().status == 408
        assert line.read_response() is None


def test_headers_that_come_byte_by_byte_are_no_reason_to_wait_longer(port, monkeypatch):
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 0.3)
    with Connection(port) as line:
        line.socket.settimeout(0.02)
        assert sent_until_closed(line, b"a") > 0


def test_what_is_left_of_a_body_after_its_answer_is_not_read_for_ever(port, monkeypatch):
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 0.3)
    with Connection(port) as line:
        line.send(request(port, "POST", "/nowhere", Content_Length="9000"))
        assert line.read_response().status == 404
        line.socket.settimeout(0.02)
        assert sent_until_closed(line, b"a") > 0


def test_what_never_comes_of_a_body_after_its_answer_is_not_waited_for(port, monkeypatch):
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 0.2)
    with Connection(port) as line:
        line.send(request(port, "POST", "/nowhere", Content_Length="9000"))
        assert line.read_response().status == 404
        line.socket.settimeout(15)  # half the time that an idle connection has
        assert line.read_response() is None


def sent_until_closed(line, data):
    """How often data was sent, with a rest after each time, before the server closed the connection."""
    for number in range(500):
        try:
            line.socket.sendall(data)
            if not line.socket.recv(4096):
                return number
        except TimeoutError:
            continue
        except ConnectionError:
            return number
    raise AssertionError("the connection stays open")


def test_a_connection_whose_last_body_came_late_is_left_in_peace(port, monkeypatch):
    monkeypatch.setattr(http_protocol, "HEADER_SECONDS", 0.2)
    with Connection(port) as line:
        line.send(request(port, "POST", "/nowhere", Content_Length="4"))
        assert line.read_response().status == 404
        line.send(b"late")
        assert line.read_response() is None  # and no error that would be taken for the next answer


def test_a_body_that_is_no_http_is_refused_once(loaded, capfd):
    with serving_in_thread(loaded) as here, Connection(here.port) as line:
        line.send(request(here.port, "GET", "/health", **CHUNKED) + b"no length\r\n\r\n")
        assert line.read_response("GET").status == 400
        assert line.read_response("GET") is None
    assert capfd.readouterr().err == ""


LONG = {"prompt": "x", "max_tokens": 600}
HALVES = {  # what holds a connection, and the status when it is closed
    "nothing": (b"", 503),
    "half of the headers": (b"GET / HTTP/1.1\r\nHost", 503),
    "half of a body": (request(0, "POST", CHAT, Host="localhost", Content_Length="10") + b"{", 503),
    "an answered request": (request(0, "GET", "/health", Host="localhost"), 200),
}


@pytest.mark.parametrize(("beginning", "status"), HALVES.values(), ids=HALVES)
def test_past_the_most_connections_the_one_that_waited_longest_makes_room(loaded, monkeypatch, beginning, status):
    monkeypatch.setattr(http_protocol, "MAX_CONNECTIONS", 2)
    with serving_in_thread(loaded) as here, Connection(here.port) as first:
        first.send(beginning)
        wait_until(lambda: here.connections == 1)
        with Connection(here.port):
            wait_until(lambda: here.connections == 2)
            assert ask(here.port, "GET", "/health").status == 200
            assert first.read_response().status == status
            assert first.read_response() is None


def test_where_all_connections_are_answered_the_next_is_told_to_come_again(loaded, monkeypatch):
    monkeypatch.setattr(http_protocol, "MAX_CONNECTIONS", 1)
    with serving_in_thread(loaded) as here, Connection(here.port) as first:
        scheduler = asyncio.run(here.models.get("tiny")).scheduler
        first.send(request(here.port, "POST", "/v1/completions", body=LONG))
        wait_until(lambda: not scheduler.idle)
        refused = ask(here.port, "GET", "/health")
        assert first.read_response().status == 200
    assert (refused.status, refused.headers["retry-after"]) == (503, "2")


@pytest.mark.parametrize(
    ("address", "proxy", "remaining"),
    [
        ("198.51.100.7", "192.0.2.7", 1),
        ("198.51.100.7", "198.51.100.7", 4),
        ("::ffff:198.51.100.7", "198.51.100.7", 4),
        ("2001:db8::7", "2001:DB8:0::7", 4),
        ("::ffff:127.0.0.1", "192.0.2.7", 4),
    ],
)
def test_one_address_has_a_share_of_the_connections_unless_it_is_a_proxy_or_this_machine(
    loaded, monkeypatch, address, proxy, remaining
):
    monkeypatch.setattr(http_protocol, "MAX_CONNECTIONS_OF_ADDRESS", 2)
    monkeypatch.setattr(h11_impl, "get_remote_addr", lambda _: (address, 1))
    with serving_in_thread(loaded, proxies=[proxy]) as here, ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(Connection(here.port))
        assert ask(here.port, "GET", "/health").status == 200  # accepted after the others
        wait_until(lambda: here.connections == remaining)


@pytest.mark.parametrize(
    ("host", "network"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("", ""),
    ],
)
def test_a_client_has_an_address_or_the_network_of_one(host, network):
    assert client_network(host) == network


def test_small_answers_are_not_held_back(loaded):
    with serving_in_thread(loaded) as here, Connection(here.port):
        wait_until(lambda: here.connections == 1)
        (line,) = here.server.server_state.connections
        assert line.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


def test_a_client_that_takes_nothing_is_let_go(loaded, monkeypatch, capfd):
    monkeypatch.setattr(http_protocol, "WRITE_TIMEOUT_SECONDS", 0.2)
    long = {"prompt": "x", "max_tokens": 600, "stream": True, "logprobs": 20}
    with serving_in_thread(loaded, buffer=4096) as here, Connection(here.port) as line:
        line.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.send(request(here.port, "POST", "/v1/completions", body=long))
        wait_until(lambda: here.connections == 1)
        wait_until(lambda: here.connections == 0)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"null",
        b"[]",
        b'"prompt"',
        b'{"prompt": "x"',
        b'{"prompt": "x"} {}',
        b"\xff\xfe{\x00}\x00",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b'{"prompt": "\\udc00\\ud800"}',
        b'{"messages": [{"role": "user", "content": "\\ud83d"}]}',
        b'{"prompt": ' + b"[" * 100_000,
        b'{"messages": [' + b'{"a":' * 100_000,
        b'{"prompt": NaN}',
        b'{"prompt": 1e999}',
        b'{"prompt": "x", "prompt2": 1}',
        b'{"prompt": "x", "messages": []}',
        b'{"prompt": "x", "' + b"p" * 1_000_000 + b'": 1}',
    ],
    ids=str,
)
def test_what_is_no_request_is_refused(port, body):
    reply = ask(port, "POST", "/tokenize", body=body)
    assert reply.status == 400
    assert reply.error["type"] == "invalid_request_error"


NUMBERS = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-101",
    "101",
    "9" * 400,
    "9" * 5000,
    '"1"',
    "true",
    "[]",
    "1e",
    "01",
]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:9])
@pytest.mark.parametrize("name", ["temperature", "top_p", "min_p", "presence_penalty", "top_logprobs"])
def test_numbers_out_of_bounds_are_refused(port, name, number):
    given = json.dumps(HELLO | {"logprobs": True})[:-1].encode()
    reply = ask(port, "POST", CHAT, body=given + f', "{name}": {number}}}'.encode())
    assert reply.status == 400
    assert reply.error["param"] in (name, None)


@pytest.mark.parametrize("number", ["1" + "0" * 400, "9" * 4000, str(1 << 63), str(1 << 64)], ids=lambda n: n[:9])
@pytest.mark.parametrize("name", ["top_k", "seed", "max_tokens"])
def test_large_numbers_are_as_good_as_the_largest_that_matter(port, name, number):
    given = json.dumps({"prompt": "x", "temperature": 1.0, "stop": "\n"})[:-1].encode()
    assert ask(port, "POST", "/v1/completions", body=given + f', "{name}": {number}}}'.encode()).status == 200


@pytest.mark.parametrize(
    ("given", "param"),
    [('"messages": [{}], %s', "unknown0"), ('"messages": [{}], "stream_options": {%s}', "stream_options")],
)
def test_of_very_many_unknown_parameters_the_first_is_named(port, given, param):
    names = ",".join(f'"unknown{number}": 1' for number in range(90_000))
    error = ask(port, "POST", CHAT, body=f"{{{given % names}}}".encode()).error
    assert (error["param"], error["message"]) == (param, "unknown parameter 'unknown0'")


def test_ids_past_the_vocabulary_are_refused(port):
    for path, name in {"/tokens": "ids", "/detokenize": "tokens", "/v1/completions": "prompt"}.items():
        body = f'{{"{name}": [{"9" * 4000}]}}'.encode()
        assert ask(port, "POST", path, body=body).error["param"].startswith(name)


def test_nul_and_control_names_are_text_like_any_other(port):
    text = "\0<|im_end|>\x7f\u2028"
    ids = ask(port, "POST", "/tokenize", body={"prompt": text}).json["tokens"]
    assert ids == list(text.encode())
    assert ask(port, "POST", "/detokenize", body={"tokens": ids}).json["prompt"] == text


def test_of_a_name_that_is_given_twice_the_last_counts(port):
    assert ask(port, "POST", "/tokenize", body=b'{"prompt": "ab", "prompt": "c"}').json["tokens"] == [ord("c")]
