"""How a batch of questions ends: by its deadline, by Ctrl-C at once, and by an error of the caller's own."""

import asyncio
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest

from reward_models.judges.chat import ChatClient, Reply
from reward_models.serving.transport import _loop
from reward_models.text.answers import AnswerError
from tests.patience import until
from tests.reward_models.judges.judge_server import number_asked, said

LONG = 120.0
"""Seconds of time-outs and pauses that a test would notice."""
SOON = 50.0
"""Seconds in which everything else is done, also where the machine stands still for a while."""
PROGRAM = """
import os, signal, sys
from reward_models.judges.chat import ChatClient

signal.signal(signal.SIGINT, signal.default_int_handler)  # shells start background jobs without it

def content():
    os.write(1, b"asked\\n")  # in one piece: threads print beside each other
    return [{"type": "text", "text": "?"}]

client = ChatClient(url=sys.argv[1], model="judge", check=False, timeout=120.0, backoff=120.0, concurrency=3)
client.ask_all([content] * 8)
"""


@pytest.fixture
def deaf():
    """The address of a server that takes connections and never says a word."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen(50)
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def closed():
    """An address where nobody listens, so that every attempt fails at once and clients wait between two."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def client(url, **options):
    return ChatClient(
        **{"url": url, "model": "judge", "check": False, "timeout": LONG, "backoff": LONG, "concurrency": 3, **options}
    )


def questions(count):
    return [lambda i=i: [{"type": "text", "text": f"{i}"}] for i in range(count)]


def timed(call):
    began = time.monotonic()
    answers = call()
    return answers, time.monotonic() - began


@pytest.mark.long
@pytest.mark.parametrize("server", ["deaf", "closed"])
def test_ctrl_c_ends_the_program_at_once(server, request):
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, request.getfixturevalue(server)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        for _ in range(3):
            assert process.stdout.readline() == "asked\n"
        time.sleep(0.3)  # until the requests are sent, or refused
        assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=SOON)
    finally:
        process.kill()
        process.wait()
    assert "KeyboardInterrupt" in errors and process.returncode in (1, -signal.SIGINT)


def test_what_is_missing_at_the_deadline_has_failed(start):
    hung = threading.Event()

    def some_hang(handler, number, body):
        if number_asked(body) % 2:
            hung.wait(LONG)
        return said(f"answer {number_asked(body)}")

    judge = start(some_hang)
    for deadline in (1.0, 20.0):  # more, where the machine stood still
        asker = client(judge.url, deadline=deadline, concurrency=8)
        answers, seconds = timed(lambda asker=asker: asker.ask_all(questions(6)))
        if all(isinstance(answers[i], Reply) for i in (0, 2, 4)):
            break
    hung.set()
    assert 0.9 * deadline < seconds < SOON
    assert [answers[i].text for i in (0, 2, 4)] == ["answer 0", "answer 2", "answer 4"]
    assert [str(answers[i]) for i in (1, 3, 5)] == [f"no answer by the batch's deadline of {deadline:g} s"] * 3
    assert all(isinstance(answers[i], AnswerError) for i in (1, 3, 5))


def test_no_request_begins_after_the_deadline(deaf):
    before = f"; before, {deaf} did not answer: no whole answer within "
    for deadline in (1.0, 20.0):  # more, where the machine stood still
        asker = client(deaf, deadline=deadline, timeout=0.6, retries=99, backoff=0.0, concurrency=2)
        answers, seconds = timed(lambda asker=asker: asker.ask_all(questions(9)))
        told = [before in str(answer) for answer in answers]
        if all(told[:2]):
            break
    assert seconds < SOON and told == [True] * 2 + [False] * 7
    assert all(str(answer).startswith(f"no answer by the batch's deadline of {deadline:g} s") for answer in answers)
    until(lambda: not asyncio.all_tasks(_loop()))


def test_a_pause_beyond_the_deadline_is_not_begun(closed):
    (answer,), seconds = timed(lambda: client(closed, deadline=SOON).ask_all(questions(1)))
    assert seconds < SOON - 10 and "deadline of 50 s; before, " in str(answer) and "Connection refused" in str(answer)


def test_an_error_in_the_making_of_a_question_is_raised_at_once(deaf):
    def broken():
        raise ZeroDivisionError("no such picture")

    began = time.monotonic()
    with pytest.raises(ZeroDivisionError, match="no such picture"):
        client(deaf).ask_all([*questions(2), broken])
    assert time.monotonic() - began < SOON


def test_connections_are_used_again(start):
    judge = start(lambda handler, number, body: said(str(handler.client_address[1])))
    asker = client(judge.url, concurrency=2)
    ports = {answer.text for _ in range(3) for answer in asker.ask_all(questions(4))}
    assert len(ports) <= 2
