"""Valid and malformed requests: the server answers valid ones, refuses the rest with an error object, and continues."""

import asyncio
import json
import os
import random
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import cycle, islice

import psutil
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from chatmill.inference.model_loading import load_model
from support.raw_http import CHAT, CHUNKED, HELLO, Connection, ask, request, serving_in_thread, wait_until, write_served
from support.serving import process

pytestmark = pytest.mark.slow
EXAMPLES = 500  # of each property
REQUESTS, SETTLED = 10_000, 2_000  # malformed requests, and those after which memory must not grow
GROWTH = 2 << 20  # bytes, about 256 for each request; 0.5 MB was measured after twice as many
MESSAGES = [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}]
CALL = {"type": "function", "function": {"name": "calculator", "arguments": '{"expression": "2+2"}'}}
TOOL = [
    {"role": "user", "content": "What is 2+2?"},
    {"role": "assistant", "tool_calls": [CALL]},
    {"role": "tool", "content": "4"},
    {"role": "assistant", "content": [{"type": "text", "text": "4"}]},
    {"role": "user", "content": "Thanks"},
]
SAMPLING = {"temperature": 1.0, "top_p": 0.9, "top_k": 5, "min_p": 0.1, "seed": 7, "stop": ["a", "b"]}
PENALTIES = {"repetition_penalty": 1.1, "presence_penalty": 0.5, "frequency_penalty": -0.5}
VALID = {
    CHAT: [
        HELLO,
        {"messages": MESSAGES, "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}} | SAMPLING,
        {"messages": TOOL, "max_completion_tokens": 2, "logprobs": True, "top_logprobs": 3, "truncation": "auto"},
        {"messages": TOOL[:4], "max_tokens": 2, "continue_final_message": True, "return_token_ids": True} | PENALTIES,
    ],
    "/v1/completions": [
        {"prompt": "Once", "max_tokens": 3, "echo": True, "logprobs": 2, "stream": True},
        {"prompt": [1, 2, 3], "max_tokens": 2, "model": "tiny"} | SAMPLING,
        {"prompt": [[1, 2], [3]], "max_tokens": 1, "n": 2},
    ],
    "/v1/responses": [
        {"input": "Hello", "max_output_tokens": 2, "stream": True, "text": {"format": {"type": "text"}}},
        {"input": MESSAGES, "max_output_tokens": 2, "instructions": "Hi", "tools": [], "tool_choice": "auto"},
    ],
    "/api/chat": [{"model": "tiny", "messages": MESSAGES, "options": {"num_predict": 2, "top_k": 1}}],
    "/api/generate": [{"model": "tiny", "prompt": "Hello", "raw": True, "options": {"num_predict": 2}}],
    "/tokenize": [{"prompt": "Hello"}, {"messages": MESSAGES}],
    "/detokenize": [{"tokens": [1, 2, 3]}],
    "/tokens": [{"ids": [1, 2, 3]}],
}
WORDS = [word for body in VALID[CHAT] for word in body]
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.sampled_from(["user", "assistant", "tool", "tiny", "<|im_end|>", "\ud800", "\0", "a" * 5000, 1 << 64, 10**400]),
)
JSON = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*WORDS, "role", "content"]) | st.text(max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)
TOKEN = st.text("!#$%&'*+-.^_`|~abcXYZ019", min_size=1, max_size=12)
VALUE = st.text(st.characters(min_codepoint=33, max_codepoint=255, exclude_characters="\x7f"), max_size=40)
NAMES = (
    "Expect Connection Upgrade Transfer-Encoding Origin Authorization Accept Range Sec-Fetch-Site Content-Type "
    "Content-Encoding Cookie TE Trailer Keep-Alive"
)
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(NAMES.split()) | TOKEN,
        st.sampled_from(["100-continue", "close", "h2c", "chunked", "gzip, chunked", "null", "Bearer x", "bytes=0-9"])
        | VALUE,
    ),
    max_size=4,
)
PATH = st.sampled_from([*VALID, "/", "/runs", "/health", "/v1/models", "/v1/models/tiny", "/assets/shared/style.css"])
METHOD = st.sampled_from(["GET", "POST", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"])
property_test = settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_served(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def here(folder):
    with serving_in_thread(load_model(folder, "cpu", 1)) as here:
        yield here


def check(reply):
    """Check that a reply is a success or an error of the API's format, and return its status."""
    assert reply is not None
    assert 200 <= reply.status < 300 or 400 <= reply.status < 500, reply
    assert reply.status < 400 or reply.error
    return reply.status


def fits(reply):
    """Whether a reply to any method is a success or an error, which has no body for HEAD."""
    return reply.status < 400 or not reply.body or bool(reply.error)


@st.composite
def mutated(draw):
    """A path, and a valid request for it with values changed, added or left out."""
    path = draw(st.sampled_from(list(VALID)))
    body = json.loads(json.dumps(draw(st.sampled_from(VALID[path]))))
    for _ in range(draw(st.integers(1, 3))):
        place, key = draw(st.sampled_from(list(places(body))))
        match draw(st.sampled_from(["change", "leave out", "add", "repeat"])):
            case "change":
                place[key] = draw(JSON)
            case "leave out":
                del place[key]
            case "add" if isinstance(place, dict):
                place[draw(st.sampled_from(WORDS))] = draw(JSON)
            case _ if isinstance(place, list):
                place *= draw(st.integers(2, 50))
        if not body:
            break
    return path, body


def places(value):
    """Yield every place in a value, as its container and key."""
    for key in value if isinstance(value, dict) else range(len(value)):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


@pytest.mark.parametrize("path", VALID)
def test_valid_requests_are_answered(here, path):
    assert [ask(here.port, "POST", path, body=body).status for body in VALID[path]] == [200] * len(VALID[path])


@property_test
@given(mutation=mutated())
def test_a_request_in_which_something_was_changed_is_answered_or_refused(here, mutation):
    path, body = mutation
    reply = ask(here.port, "POST", path, body=body)
    check(reply)
    last = reply.events[-1] if "event-stream" in reply.headers["content-type"] else {}
    assert not (last.get("error") or last.get("type") == "error")


@property_test
@given(path=st.sampled_from(list(VALID)), body=JSON)
def test_any_json_is_answered_or_refused(here, path, body):
    check(ask(here.port, "POST", path, body=body))


@property_test
@given(path=st.sampled_from(list(VALID)), body=st.binary(max_size=300))
def test_any_bytes_as_a_body_are_refused(here, path, body):
    reply = ask(here.port, "POST", path, body=body)
    assert (reply.status, reply.error["type"]) == (400, "invalid_request_error")


@property_test
@given(path=st.sampled_from(list(VALID)), data=st.data())
def test_a_valid_body_with_other_bytes_in_it_is_answered_or_refused(here, path, data):
    body = bytearray(json.dumps(data.draw(st.sampled_from(VALID[path]))).encode())
    for _ in range(data.draw(st.integers(1, 3))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    check(ask(here.port, "POST", path, body=bytes(body)))


@property_test
@given(method=METHOD | TOKEN, path=PATH, headers=HEADERS)
def test_any_method_and_headers_are_answered_or_refused(here, method, path, headers):
    with Connection(here.port) as line:
        line.send(request(here.port, method, path, headers=headers), last=True)
        reply = line.read_response(method)
    assert reply is None or (reply.status < 500 and fits(reply))


@property_test
@given(path=st.text(st.characters(min_codepoint=33, max_codepoint=126), max_size=60))
def test_any_path_is_answered_or_refused(here, path):
    check(ask(here.port, "GET", f"/{path}"))


@property_test
@given(data=st.binary(max_size=400) | st.text("GETPOS /HTP1.\r\n:", max_size=80).map(str.encode))
def test_any_bytes_on_the_line_are_refused_or_not_enough(here, data):
    with Connection(here.port) as line:
        line.send(data, last=True)
        reply = line.read_response()
    assert reply is None or reply.error


@property_test
@given(path=st.sampled_from(list(VALID)), data=st.data())
def test_a_request_that_is_cut_anywhere_is_refused_or_forgotten(here, path, data):
    whole = request(here.port, "POST", path, body=data.draw(st.sampled_from(VALID[path])))
    with Connection(here.port) as line:
        line.send(whole[: data.draw(st.integers(0, len(whole) - 1))], last=True)
        reply = line.read_response()
    assert reply is None or reply.error


@property_test
@given(data=st.data())
def test_requests_one_after_another_are_answered_in_turn_however_they_are_cut(here, data):
    requests = data.draw(st.lists(st.sampled_from([(p, b) for p, bodies in VALID.items() for b in bodies]), max_size=5))
    stream = b"".join(request(here.port, "POST", path, body=body) for path, body in requests)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=4)))
    with Connection(here.port) as line:
        for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
            line.send(stream[start:end])
        assert [line.read_response().status for _ in requests] == [200] * len(requests)


def malformed(number, port):
    """A malformed request, the same for the same number."""
    chance = random.Random(number)
    path, body = chance.choice([(path, body) for path, bodies in VALID.items() for body in bodies])
    whole = json.dumps(body).encode()
    noise = chance.randbytes(chance.randrange(1, 200))
    match number % 12:
        case 0:
            return noise + b"\r\n\r\n"
        case 1:
            return request(port, "POST", path, body=noise)
        case 2:
            return request(port, "POST", path, body=whole[: chance.randrange(len(whole))])
        case 3:
            return request(port, "POST", path, body=body | {f"unknown{number}": number})
        case 4:
            return request(port, "POST", path, body=b"[" * chance.randrange(1, 50_000))
        case 5:
            return request(port, "POST", path, body=body, Host=f"h{number}.example")
        case 6:
            return request(port, "POST", path, body=body, Origin=f"https://o{number}.example")
        case 7:
            return request(port, "POST", path, **CHUNKED) + noise + b"\r\n\r\n"
        case 8:
            return request(port, "POST", path, Content_Length="9" * chance.randrange(8, 30))
        case 9:
            return request(port, chance.choice(["GET", "PUT", "DELETE"]), f"{path}/{number}")
        case 10:
            return request(port, "GET", "/health", headers=[(f"A{i}", "a" * 400) for i in range(100)])
        case _:
            model = {} if path == "/" else {"model": f"model-{number}"}
            return request(port, "POST", path, body=body | model)


def refused(number, port):
    """Send a malformed request; the server must reply with an error."""
    with Connection(port) as line:
        line.send(malformed(number, port), last=number % 12 in (0, 7))
        reply = line.read_response()
    if reply is None:
        assert number % 12 in (0, 7), "no reply"  # the bytes may be the start of a request that is cut off
    else:
        assert 400 <= reply.status < 500, (number, reply)
        assert reply.error


def test_ten_thousand_malformed_requests_leave_nothing_behind(folder):
    with process("--model", folder, "--device", "cpu", "--threads", 1, "--strict") as (address, started):
        port, server = int(address.rpartition(":")[2]), psutil.Process(started.pid)
        threads = server.num_threads() + min(32, os.cpu_count() + 4)  # those that asyncio.to_thread may start
        before = ask(port, "POST", CHAT, body=HELLO).json["choices"]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(partial(refused, port=port), range(SETTLED)))
            memory, files = server.memory_info().rss, server.num_fds()
            list(pool.map(partial(refused, port=port), range(SETTLED, REQUESTS)))
        wait_until(lambda: server.num_fds() <= files)
        assert server.memory_info().rss - memory < GROWTH
        assert server.num_threads() <= threads
        assert ask(port, "POST", CHAT, body=HELLO).json["choices"] == before
        started.terminate()
        assert started.communicate()[1].count("\n") == 1  # the line about the model, and no more


LONG = {"prompt": "x", "max_tokens": 600, "stream": True, "logprobs": 20}


def goes_after_headers(line, port):
    line.send(request(port, "POST", "/v1/completions", Content_Length="100"))


def goes_within_the_body(line, port):
    line.send(request(port, "POST", "/v1/completions", body=LONG)[:-10])


def goes_at_once(line, port):
    line.send(request(port, "POST", "/v1/completions", body=LONG))


def goes_while_the_answer_is_made(line, port):
    line.send(request(port, "POST", "/v1/completions", body=LONG | {"stream": False}))


def goes_in_the_stream(line, port):
    line.send(request(port, "POST", "/v1/completions", body=LONG))
    if b" 200 " in line.read_line():  # unless the queue is full
        while not line.read_line().startswith(b"data: "):
            pass


def goes_while_probabilities_are_read(line, port):
    line.send(request(port, "POST", "/tokens", body={"ids": [1] * 600}))


STAGES = [
    goes_after_headers,
    goes_within_the_body,
    goes_at_once,
    goes_while_the_answer_is_made,
    goes_in_the_stream,
    goes_while_probabilities_are_read,
]


def leave(stage, port):
    """Send a request up to a stage, and disconnect."""
    with Connection(port) as line:
        stage(line, port)


def test_clients_that_go_away_at_any_stage_leave_rows_and_queue_free(here):
    scheduler = asyncio.run(here.models.get("tiny")).scheduler
    with ThreadPoolExecutor(16) as pool:
        list(pool.map(partial(leave, port=here.port), islice(cycle(STAGES), 40 * len(STAGES))))
    wait_until(lambda: here.connections == 0 and scheduler.idle)
    with ThreadPoolExecutor(12) as pool:  # as many as there are slots and places in the queue
        ask_one = partial(ask, here.port, "POST", "/v1/completions", body=LONG | {"max_tokens": 100})
        assert [found.result().status for found in [pool.submit(ask_one) for _ in range(12)]] == [200] * 12


def test_clients_that_take_nothing_leave_the_others_their_rows(here):
    lines = [Connection(here.port) for _ in range(4)]
    for line in lines:
        goes_at_once(line, here.port)
    assert ask(here.port, "POST", CHAT, body=HELLO).status == 200
    for line in lines:
        line.close()
    wait_until(lambda: here.connections == 0)


HALF = {"Content_Length": "100000"}  # of a body, of which one byte is sent


def test_six_hundred_half_bodies_shut_nobody_out(here):
    with ExitStack() as stack:
        for _ in range(600):
            stack.enter_context(Connection(here.port)).send(request(here.port, "POST", CHAT, **HALF) + b"{")
            if len(here.server.server_state.connections) % 100 == 0:
                assert ask(here.port, "GET", "/health").status == 200
        assert ask(here.port, "POST", CHAT, body=HELLO).status == 200
    wait_until(lambda: here.connections == 0)


def test_a_large_request_is_refused_or_answered_while_others_go_on(here):
    bodies = [
        b'{"messages": [' + b'{"role": "user", "content": "a"}, ' * 50_000 + b"{}]}",
        b"{" + b",".join(b'"k%d": 1' % number for number in range(150_000)) + b"}",
        json.dumps({"prompt": "etaoin" * 160_000, "max_tokens": 1}).encode(),
    ]
    with ThreadPoolExecutor(8) as pool:
        replies = [
            pool.submit(ask, here.port, "POST", path, body=body) for path in (CHAT, "/tokenize") for body in bodies
        ]
        assert ask(here.port, "GET", "/health").status == 200
        statuses = {found.result().status for found in replies}
    assert statuses <= {200, 400}
