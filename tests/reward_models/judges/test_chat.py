"""The chat client against a real server on this machine that hangs, breaks, refuses and talks nonsense."""

import asyncio
import email.utils
import re
import socket
import threading
import time
from types import SimpleNamespace

import pytest

from reward_models.judges import chat
from reward_models.judges.chat import Reply
from reward_models.text.answers import AnswerError
from tests.reward_models.judges.judge_server import ask, client, number_asked, said


def test_order_is_kept_and_concurrency_is_bounded(start):
    four = threading.Event()

    def slower_first(handler, number, body):
        if judge.most_running >= 4:
            four.set()
        four.wait(30)  # all go on once four are there
        time.sleep(0.05 if number_asked(body) % 3 == 0 else 0.005)
        return said(f"answer {number_asked(body)}")

    judge = start(slower_first)
    replies = ask(client(judge, concurrency=4), 24)
    assert [reply.text for reply in replies] == [f"answer {i}" for i in range(24)]
    assert judge.most_running == 4 and client(judge).ask_all([]) == []


def test_what_is_sent(start):
    judge = start(lambda handler, number, body: said())
    asker = client(judge, extra={"seed": 3, "max_tokens": None, "max_completion_tokens": 7})
    ask(asker, temperature=0.5)
    body = judge.asked[0]
    assert body.pop("messages") == [{"role": "user", "content": [{"type": "text", "text": "0"}]}]
    assert body == {"model": "judge", "temperature": 0.5, "seed": 3, "max_completion_tokens": 7}
    assert "Authorization" not in judge.headers_seen[-1]


def hang_up(handler):
    handler.close_connection = True
    handler.connection.shutdown(socket.SHUT_RDWR)


def always(status, body):
    return lambda handler, number, asked: handler.reply(status, body)


def at_last(attempts, fails):
    """Fine after so many attempts."""
    return lambda handler, number, asked: fails(handler) if number < attempts else said()


SERVERS = {
    "a time-out of its own, twice": (at_last(2, lambda handler: handler.reply(408, b"later")), "fine", 3),
    "a broken gateway, twice": (at_last(2, lambda handler: handler.reply(502, b"later")), "fine", 3),
    "a connection that breaks": (at_last(1, hang_up), "fine", 2),
    "always loading": (always(503, {"error": "loading"}), "answered 503 'loading', 3 attempts", 3),
    "no right": (always(401, {"error": {"message": "no such key"}}), "401.*no such key", 1),
    "too much": (always(422, {"error": {"message": "too many pictures"}}), "422.*too many pictures", 1),
    "a page": (always(200, b"<html>"), "no chat completion", 1),
    "no choice": (always(200, b'{"choices": []}'), "no chat completion", 1),
    "no content": (always(200, b'{"choices": [{"message": {}}]}'), "no chat completion", 1),
    "other bytes": (always(200, b"\xff\xfe"), "no chat completion", 1),
    "blanks": (always(200, said("  \n")), "without text", 1),
    "no text": (always(200, said([{"type": "text"}])), "without text", 1),
}


@pytest.mark.parametrize("how", SERVERS)
def test_what_passes_is_asked_again_and_what_stays_is_a_reason(start, how):
    """In which other ways a connection breaks is tried in serving/test_remote.py, over the same transport."""
    handle, expected, asked = SERVERS[how]
    judge = start(handle)
    (answer,) = ask(client(judge))
    assert isinstance(answer, Reply if expected == "fine" else AnswerError) and len(judge.asked) == asked
    assert re.search(expected, answer.text if expected == "fine" else str(answer))


@pytest.mark.parametrize("ahead", [-7200, 7200])
def test_a_date_to_come_back_at_is_one_of_the_servers_clock(start, monkeypatch, ahead):
    def busy(handler, number, body):
        sent = time.time() + ahead
        handler.date_time_string = lambda: email.utils.formatdate(sent, usegmt=True)
        if number:
            return said()
        return handler.reply(429, b"", Retry_After=email.utils.formatdate(sent + 30, usegmt=True))

    assert waits_of(monkeypatch, start(busy), backoff=0.5) == [30.0]


def waits_of(monkeypatch, judge, **options):
    """Seconds between the attempts at one question, none of which are waited."""
    waits = []

    async def note(seconds):
        waits.append(seconds)

    monkeypatch.setattr(chat, "asyncio", SimpleNamespace(sleep=note, to_thread=asyncio.to_thread))
    ask(client(judge, **options))
    return waits


def test_waiting_is_bounded_and_doubles(start, monkeypatch):
    judge = start(
        lambda handler, number, body: handler.reply(429, b"", Retry_After="86400" if number == 2 else "nonsense")
    )
    assert waits_of(monkeypatch, judge, retries=3, backoff=0.5) == [0.5, 1.0, chat.LONGEST_WAIT]


def never(handler, number, body):
    """Nothing is said, and the connection stays open."""


def attempts(error):
    return int(re.search(r", (\d+) attempts?$", str(error))[1])


def test_a_hanging_server_is_left(start):
    began = time.monotonic()
    (error,) = ask(client(start(never), timeout=0.2, retries=1, check=False))
    assert re.search(r"did not answer: no whole answer within [\d.]+ s, 2 attempts$", str(error))
    assert 0.4 <= time.monotonic() - began < 30


@pytest.mark.long
def test_a_dead_server_does_not_hold_up_a_batch(start):
    asker = client(start(never), timeout=0.2, retries=3, concurrency=2, check=False)
    errors = ask(asker, 8)
    assert all("did not answer" in str(error) for error in errors)
    first, others = sorted(map(attempts, errors[:2])), errors[2:]
    assert first in ([1, 4], [4, 4]) and set(map(attempts, others)) == {1}  # one may begin when the other has failed
    assert attempts(ask(asker)[0]) == 4  # the next batch tries again in full


def test_an_answer_brings_the_attempts_back(start):
    judge = start(lambda handler, number, body: hang_up(handler) if number < 2 or number == 3 else said())
    replies = ask(client(judge, retries=1, concurrency=1), 3)
    # the first fails twice, the second has one attempt and is answered, the third has two again
    assert [isinstance(reply, Reply) for reply in replies] == [False, True, True] and len(judge.asked) == 5


def test_an_endless_reply_is_refused(start, monkeypatch):
    monkeypatch.setattr(chat, "LARGEST_REPLY", 5000)
    (error,) = ask(client(start(lambda handler, number, body: said("x" * 9000))))
    assert "longer than 5000 bytes" in str(error)


def test_thinking_and_cut_off_answers(start):
    texts = [said("<think>Score: 1</think>\nScore: 4"), said("Score: 4", finish_reason="length")]
    judge = start(lambda handler, number, body: texts[number_asked(body)])
    thought, short = ask(client(judge), 2)
    assert thought == Reply("\nScore: 4", True, []) and not short.complete


def test_one_failure_leaves_the_others(start):
    def some(handler, number, body):
        return handler.reply(400, b"no") if number_asked(body) == 2 else said()

    replies = ask(client(start(some)), 5)
    assert [isinstance(reply, Reply) for reply in replies] == [True, True, False, True, True]


def test_replicas_share_the_work_and_stand_in_for_each_other(start):
    good, bad = start(lambda handler, number, body: said()), start(lambda handler, number, body: hang_up(handler))
    asker = client(good, url=[good.url, bad.url + "/v1/"], check=False)
    assert all(isinstance(reply, Reply) for reply in ask(asker, 8))
    assert len(bad.asked) == 4 and len(good.asked) == 8
    other = start(lambda handler, number, body: said())
    asker = client(good, url=[good.url, other.url])
    for _ in range(6):  # also batches of one are shared
        ask(asker)
    assert len(good.asked) - 8 == len(other.asked) == 3


def test_pictures_are_made_when_they_are_sent(start):
    alive, most, lock = [0], [0], threading.Lock()

    def content():
        with lock:
            alive[0] += 1
            most[0] = max(most[0], alive[0] - len(judge.asked))
        return [{"type": "text", "text": "0"}]

    judge = start(lambda handler, number, body: said())
    client(judge, concurrency=2).ask_all([content] * 20)
    assert most[0] <= 3  # of 20: those on their way, and one that is about to be
