"""Connections that break, dawdle or hold on: others are answered, and the log has a line of each at most."""

import asyncio
import contextlib
import signal
import socket
import threading
from urllib.parse import urlsplit

import pytest
import uvicorn
from starlette.requests import ClientDisconnect
from uvicorn.server import ServerState

from reward_models.serving import connections as connections_module
from reward_models.serving.connections import STEP, Connection, server_config
from reward_models.serving.server import address_of, background, make_app
from tests.patience import LONG, until
from tests.reward_models.serving.test_microbatch import Mean
from tests.reward_models.serving.test_server import health

CHUNKED = b"POST /v1/score/%s HTTP/1.1\r\nHost: x\r\nDiffrl-Protocol: 2\r\nTransfer-Encoding: chunked\r\n\r\n"
NO_CHUNK = b"no chunk\r\n\r\n"


@contextlib.contextmanager
def line_to(url):
    """A connection whose reads wait for a slow machine."""
    parts = urlsplit(url)
    with socket.create_connection((parts.hostname, parts.port), LONG) as line:
        yield line


def rest_of(line):
    """Everything until the server ends the connection."""
    data = b""
    with contextlib.suppress(ConnectionResetError):
        while piece := line.recv(65536):
            data += piece
    return data


def head_of(line):
    """An answer's head, and what came with it."""
    data = b""
    while b"\r\n\r\n" not in data:
        piece = line.recv(65536)
        assert piece, data
        data += piece
    return data


@pytest.fixture(scope="module")
def server():
    with background({"mean": Mean()}, max_body_mb=1) as url:
        yield url


def test_a_body_that_breaks_after_its_answer_ends_the_connection_quietly(server, caplog):
    """The answer 404 is there before the body, so that no second one can be begun."""
    with line_to(server) as line:
        line.sendall(CHUNKED % b"none")
        assert b" 404 " in head_of(line)
        line.sendall(NO_CHUNK)
        rest_of(line)
    assert health(server)["ready"]
    assert not [record for record in caplog.records if record.exc_info]


def test_a_body_that_breaks_before_its_answer_gets_one_answer(server, caplog):
    """The service waits for the body; what it says of the lost client afterwards must not follow the 400."""
    with line_to(server) as line:
        line.sendall(CHUNKED % b"mean" + b"1\r\n{\r\n")
        until(lambda: health(server)["arriving"] == 1)
        line.sendall(NO_CHUNK)
        answer = rest_of(line)
    assert answer.startswith(b"HTTP/1.1 400 ") and answer.count(b"HTTP/1.1") == 1
    until(lambda: health(server)["arriving"] == 0)
    assert not [record for record in caplog.records if record.exc_info]


@contextlib.contextmanager
def answering(app, patience=LONG):
    """A server of an application, in a thread: its address, and its connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(server_config(app, log_config=None, timeout_keep_alive=patience, lifespan="off"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        until(lambda: server.started)
        try:
            yield address_of(listener), server.server_state.connections
        finally:
            server.should_exit = True
            thread.join(LONG)


class App:
    """Answers with `size` bytes, once `gate` is open."""

    def __init__(self, size=1):
        self.size, self.gate, self.begun = size, threading.Event(), threading.Semaphore(0)
        self.gate.set()

    async def __call__(self, scope, receive, send):
        self.begun.release()
        while not self.gate.is_set():
            await asyncio.sleep(0.005)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % self.size)]})
        await send({"type": "http.response.body", "body": b"x" * self.size})


GET = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"
HALF = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n"


def takes_a_byte(line):
    try:
        line.sendall(b"a")
    except ConnectionError:
        return False
    return True


@pytest.mark.parametrize("first", [b"", GET[:9], HALF], ids=["nothing", "half a head", "half a body"])
def test_who_sends_a_byte_now_and_then_is_not_waited_for(first):
    """Nothing is sent, or ever more bytes of a head, or of a body that nobody reads."""
    with answering(App(), patience=0.05) as (url, connections), line_to(url) as line:
        line.sendall(first)
        until(lambda: connections)
        until(lambda: not connections or (first and not takes_a_byte(line)))


def test_who_does_not_read_the_answer_is_not_waited_for():
    with answering(App(30_000_000), patience=0.05) as (url, connections), socket.socket() as line:
        line.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        line.connect((urlsplit(url).hostname, urlsplit(url).port))
        line.sendall(GET)
        until(lambda: connections)
        until(lambda: not connections)


def test_an_answer_that_takes_long_is_waited_for():
    app = App()
    app.gate.clear()
    with answering(app) as (url, connections), line_to(url) as line:
        line.sendall(GET)
        assert app.begun.acquire(timeout=LONG)
        (connection,) = connections
        looks = []
        look, connection.look = connection.look, lambda: looks.append(1)
        for _ in range(3):
            connection.loop.call_soon_threadsafe(look)
        app.gate.set()
        assert head_of(line).startswith(b"HTTP/1.1 200 ")


def test_silent_connections_make_room(monkeypatch):
    """Those that never asked anything go first, the oldest first; one that has asked is still answered."""
    monkeypatch.setattr(connections_module, "most_connections", lambda: 5)
    with answering(App(size=0)) as (url, connections), contextlib.ExitStack() as stack:
        known = stack.enter_context(line_to(url))
        known.sendall(GET)
        head_of(known)
        silent = [stack.enter_context(line_to(url)) for _ in range(20)]
        with line_to(url) as other:
            other.sendall(GET)
            assert head_of(other).startswith(b"HTTP/1.1 200 ")
        assert [rest_of(line) for line in silent[:16]] == [b""] * 16
        assert len(connections) <= 5
        known.sendall(GET)
        assert head_of(known).startswith(b"HTTP/1.1 200 ")


def test_a_server_whose_places_are_all_in_use_says_so(monkeypatch):
    monkeypatch.setattr(connections_module, "most_connections", lambda: 2)
    app = App()
    app.gate.clear()
    with answering(app) as (url, _), line_to(url) as one, line_to(url) as two:
        for line in (one, two):
            line.sendall(GET)
            assert app.begun.acquire(timeout=LONG)
        with line_to(url) as three:
            assert rest_of(three).startswith(b"HTTP/1.1 503 ")
        app.gate.set()
        assert head_of(one).startswith(b"HTTP/1.1 200 ") and head_of(two).startswith(b"HTTP/1.1 200 ")


@pytest.mark.parametrize("error", [ClientDisconnect(), asyncio.CancelledError()], ids=repr)
def test_an_answer_that_is_broken_off_is_a_line_in_the_log(error, caplog):
    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
        raise error

    with answering(app) as (url, _), line_to(url) as line:
        line.sendall(GET)
        rest_of(line)
    assert not [record for record in caplog.records if record.exc_info]
    assert any(type(error).__name__ in record.getMessage() for record in caplog.records)


def test_a_mistake_of_ours_keeps_its_traceback(caplog):
    async def app(scope, receive, send):
        raise ZeroDivisionError

    with answering(app) as (url, _), line_to(url) as line:
        line.sendall(GET)
        assert head_of(line).startswith(b"HTTP/1.1 500 ")
    assert [record for record in caplog.records if record.exc_info]


def test_ctrl_c_twice_ends_the_service_as_once_does(caplog):
    """The second one does not wait for what is under way; the scorers' threads end all the same."""
    app = make_app({"mean": Mean()})
    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = uvicorn.Server(server_config(app, log_config=None))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        until(lambda: server.started)
        for _ in range(2):
            server.handle_exit(signal.SIGINT, None)
        thread.join(LONG)
    assert app.state.service.closing
    assert "Traceback" not in caplog.text


class Transport:
    """Takes what is written; the test says how much of it has been read."""

    def __init__(self):
        self.size, self.closing, self.aborted = 0, False, False

    def get_extra_info(self, name):
        return None

    def get_write_buffer_size(self):
        return self.size

    def is_closing(self):
        return self.closing

    def close(self):
        self.closing = True

    def abort(self):
        self.closing = self.aborted = True


@pytest.mark.parametrize("read, aborted", [(STEP, False), (STEP - 1, True)])
def test_who_reads_slowly_is_waited_for_and_who_hardly_reads_is_not(read, aborted):
    loop = asyncio.new_event_loop()
    config = server_config(App(), timeout_keep_alive=LONG)
    config.load()
    connection, transport = Connection(config, ServerState(), {}, loop), Transport()
    connection.connection_made(transport)
    transport.size = 20 * STEP
    connection.pause_writing()
    for _ in range(10):
        connection.look()
        transport.size -= read
    assert transport.aborted == aborted
    connection.connection_lost(None)
    loop.close()
