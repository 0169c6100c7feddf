"""Requests whose end two servers may see in different places are refused, and what follows them is never answered."""

import pytest

from chatmill.inference.model_loading import load_model
from support.raw_http import CHUNKED, Connection, request, serving_in_thread, write_served

HIDDEN = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
AMBIGUOUS = {
    "Content-Length and chunks": b"Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
    "chunks and Content-Length": b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
    "Content-Length twice": b"Content-Length: 0\r\nContent-Length: 0\r\n",
    "two different Content-Lengths": b"Content-Length: 0\r\nContent-Length: 50\r\n",
    "a list of Content-Lengths": b"Content-Length: 0, 0\r\n",
    "no Content-Length": b"Content-Length:\r\n",
    "a sign": b"Content-Length: +0\r\n",
    "hexadecimal digits": b"Content-Length: 0x0\r\n",
    "other digits": "Content-Length: \u0660\r\n".encode(),
    "Transfer-Encoding twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
    "chunked, identity": b"Transfer-Encoding: chunked, identity\r\n",
    "identity": b"Transfer-Encoding: identity\r\n",
    "gzip, chunked": b"Transfer-Encoding: gzip, chunked\r\n",
    "an unknown coding": b"Transfer-Encoding: xchunked\r\n",
    "a folded coding": b"Transfer-Encoding:\r\n chunked\r\n",
    "a folded coding by a tab": b"Transfer-Encoding: chunked\r\n\t, identity\r\n",
    "a folded header": b"X: 1\r\n Transfer-Encoding: chunked\r\n",
    "a vertical tab": b"Transfer-Encoding: \x0bchunked\r\n",
    "a space before the colon": b"Transfer-Encoding : chunked\r\n",
    "a tab before the colon": b"Content-Length\t: 0\r\n",
    "a space before the name": b" Content-Length: 0\r\n",
    "no name": b": 0\r\n",
    "no colon": b"Content-Length 0\r\n",
    "a bare line feed": b"X: 1\nContent-Length: 0\r\n",
    "a bare carriage return": b"X: 1\rContent-Length: 0\r\n",
    "a NUL": b"X: \0\r\n",
}


@pytest.fixture(scope="module")
def port(tmp_path_factory):
    with serving_in_thread(load_model(write_served(tmp_path_factory.mktemp("served")), "cpu", 1)) as here:
        yield here.port


def check_refused(port, data):
    with Connection(port) as line:
        line.send(data)
        reply = line.read_response("GET")
        assert (reply.status, reply.headers["connection"]) == (400, "close")
        assert reply.error["type"] == "invalid_request_error"
        assert line.read_response("GET") is None


@pytest.mark.parametrize("headers", AMBIGUOUS.values(), ids=AMBIGUOUS)
def test_ambiguous_headers_are_refused_and_what_follows_is_not_answered(port, headers):
    check_refused(port, b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\n" + headers + b"\r\n0\r\n\r\n" + HIDDEN)


@pytest.mark.parametrize(
    ("head", "reason"),
    [
        (b"X: 1\r\n 2\r\n", "a header is continued on another line, or its name is malformed"),
        (b"Content-Length: 1\r\nContent-Length: 1\r\n", "more than one Content-Length or Transfer-Encoding"),
        (b"Content-Length: -1\r\n", "Content-Length is not a number"),
        (b"X: 1\n", "a line ends without CR LF"),
        (b"Host: localhost\r\n", "Found multiple Host: headers"),  # h11's own words
    ],
)
def test_the_error_says_why_a_request_is_refused(port, head, reason):
    with Connection(port) as line:
        line.send(b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + head + b"\r\n")
        assert reason in line.read_response("GET").error["message"]


@pytest.mark.parametrize(
    "head",
    [
        b"GET /health HTTP/1.1\nHost: localhost\n\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\n\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\n\r\n",
        b"\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /tokenize HTTP/1.0\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
    ids=["feeds only", "a feed at the end", "a feed before the end", "a feed at the start", "chunks in HTTP/1.0"],
)
def test_lines_without_cr_lf_and_chunks_in_http_1_0_are_refused(port, head):
    check_refused(port, head + HIDDEN)


def test_ambiguous_headers_that_arrive_byte_by_byte_or_after_another_request_are_refused(port):
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
    with Connection(port) as line:
        line.send(request(port, "GET", "/health") + head[:60])
        assert line.read_response("GET").status == 200
        for byte in head[60:]:
            line.send(bytes([byte]))
        assert line.read_response().status == 400
        assert line.read_response() is None


@pytest.mark.parametrize("end", [b"0\r\n\n", b"0;a=b\r\n\r\n", b"0\r\nX: 1\n\n", b"0\r\n\r\n"], ids=ascii)
def test_nothing_is_answered_after_a_body_in_chunks(port, end):
    chunk = b'10\r\n{"prompt": "Hi"}\r\n'
    with Connection(port) as line:
        line.send(request(port, "POST", "/tokenize", **CHUNKED) + chunk + end + HIDDEN)
        reply = line.read_response()
        assert (reply.status, reply.json["count"], reply.headers["connection"]) == (200, 2, "close")
        assert line.read_response("GET") is None


@pytest.mark.parametrize("size", [b"-1", b"0x10", b"+10", b" 10", b"1 0", b"", b"10\n", b"F" * 21], ids=ascii)
def test_chunks_of_a_malformed_size_are_refused(port, size):
    with Connection(port) as line:
        line.send(request(port, "POST", "/tokenize", **CHUNKED) + size + b'\r\n{"prompt": "Hi"}\r\n0\r\n\r\n' + HIDDEN)
        assert line.read_response().status == 400
        assert line.read_response("GET") is None


@pytest.mark.parametrize("path", ["/nowhere", "/tokenize", "/health"])
def test_a_request_inside_a_body_is_not_answered(port, path):
    with Connection(port) as line:
        line.send(request(port, "POST", path, body=HIDDEN) + request(port, "GET", "/health"))
        assert line.read_response().status in (400, 404, 405)
        assert line.read_response("GET").json == {"status": "ok"}


def test_headers_of_any_case_and_white_space_around_values_are_read(port):
    with Connection(port) as line:
        line.send(b"POST /tokenize HTTP/1.1\r\nhOST:localhost\r\ncONTENT-lENGTH: \t15 \r\n\r\n" + b'{"prompt": "H"}')
        assert line.read_response().json["count"] == 1
