"""The scoring service over a real socket: what it answers, what it refuses, how it ends."""

import contextlib
import http.client
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest
import requests

from reward_models import RewardBatch, load_reward
from reward_models.serving import endpoints
from reward_models.serving.admission import Admission, BusyError
from reward_models.serving.server import background
from reward_models.serving.wire import PROTOCOL_HEADER, encode_request
from tests.patience import LONG, until
from tests.reward_models.serving.test_microbatch import Mean, request

TOKEN = "a-token-of-tests"


def post(url, batch_or_body, name="mean", timeout=LONG, **headers):
    body = encode_request(batch_or_body) if isinstance(batch_or_body, RewardBatch) else batch_or_body
    headers = {PROTOCOL_HEADER: "2", **headers}
    return requests.post(f"{url}/v1/score/{name}", data=body, headers=headers, timeout=timeout)


def health(url):
    return requests.get(f"{url}/health", timeout=LONG).json()


@contextmanager
def held_server(**limits):
    """A server whose scorer waits for `gate` in every call."""
    scorer = Mean()
    scorer.gate.clear()
    with background({"mean": scorer}, **{"max_wait_ms": 0, **limits}) as url:
        try:
            yield url, scorer
        finally:
            scorer.gate.set()


@pytest.fixture(scope="module")
def server():
    with background({"shapes": load_reward("shapes"), "mean": Mean(media=("image",))}, max_body_mb=1) as url:
        yield url


def test_health_and_listing(server):
    told = health(server)
    assert told["ready"] is True and told["uptime_s"] >= 0 and told["queue"] == {"shapes": 0, "mean": 0}
    listing = requests.get(f"{server}/v1/rewards", timeout=LONG).json()
    spec = listing["rewards"]["shapes"]
    assert (spec["version"], spec["range"], spec["media"], spec["scope"]) == ("2", [0.0, 1.0], ["image"], "sample")
    assert spec["code_license"] == "Apache-2.0" and listing["limits"]["max_body_mb"] == 1
    before = health(server)
    post(server, request(1, 2, 3))
    after = health(server)
    assert after["samples"] - before["samples"] == 3 and after["answers"]["200"] > before["answers"]["200"]


REFUSED = {
    "unknown reward": (dict(name="beauty"), 404, "Known: mean, shapes"),
    "unknown path": (dict(name="mean/x"), 404, "POST /v1/score/NAME"),
    "wrong kind": (dict(batch_or_body=request(1, fps=8.0)), 422, "scores images"),
    "oversized": (dict(batch_or_body=b"x" * 1_000_001), 413, "may have 1 MB"),
    "oversized, chunked": (dict(batch_or_body=(b"x" * 100_000 for _ in range(11))), 413, "may have 1 MB"),
    "compressed": ({"Content-Encoding": "gzip"}, 415, "compressed"),
    "no safetensors": (dict(batch_or_body=b"{"), 400, "not a whole safetensors file"),
    "another client": ({PROTOCOL_HEADER: "3"}, 400, "Got 3."),
    "a crash": (dict(batch_or_body=request(1, prompt="crash")), 500, "ZeroDivisionError: crashed on purpose"),
    "a refusal": (dict(batch_or_body=request(1, prompt="refuse")), 422, "It does not fit."),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals_are_sentences_with_a_status(server, case, caplog):
    options, status, words = REFUSED[case]
    answer = post(server, **{"batch_or_body": request(1), **options})
    assert answer.status_code == status and list(answer.json()) == ["error"]
    assert words in answer.json()["error"] and "Traceback" not in answer.text
    logged = [record for record in caplog.records if record.exc_info]
    assert len(logged) == (case == "a crash")  # a broken scorer is logged, bad input is not
    assert post(server, request(7)).json()["raw"] == [7.0]


def test_wrong_methods(server):
    for method, path in (("GET", "/v1/score/mean"), ("POST", "/health"), ("DELETE", "/v1/rewards")):
        answer = requests.request(method, server + path, timeout=LONG)
        assert answer.status_code == 405 and "There are GET /health" in answer.json()["error"]


def test_the_token_guards_everything_but_health():
    with background({"mean": Mean()}, token=TOKEN) as url:
        assert health(url)["ready"]
        for header in (
            {},
            {"Authorization": "Bearer wrong"},
            {"Authorization": TOKEN},
            {"Authorization": f"Basic {TOKEN}"},
        ):
            answer = post(url, request(1), **header)
            assert answer.status_code == 401 and answer.headers["WWW-Authenticate"] == "Bearer"
            assert TOKEN not in answer.text
        assert requests.get(f"{url}/v1/rewards", timeout=LONG).status_code == 401
        assert post(url, request(1), Authorization=f"bearer {TOKEN}").json()["raw"] == [1.0]


def test_a_full_service_answers_503_and_recovers():
    with held_server(queue_size=3) as (url, scorer):
        answers = []
        threads = [threading.Thread(target=lambda n=n: answers.append((n, post(url, request(n))))) for n in range(3)]
        for thread in threads:
            thread.start()
        until(lambda: health(url)["under_way"] == 3)
        answer = post(url, request(9))
        assert answer.status_code == 503 and int(answer.headers["Retry-After"]) >= 1
        scorer.gate.set()
        for thread in threads:
            thread.join()
        assert {n: answer.json()["raw"] for n, answer in answers} == {n: [float(n)] for n in range(3)}
        assert post(url, request(9)).status_code == 200 and health(url)["held_mb"] == 0


def test_no_more_bytes_are_held_than_allowed():
    side = 500  # 0.75 MB an image
    with held_server(max_body_mb=1, max_held_mb=2) as (url, scorer):
        threads = []
        for n in (1, 2):
            threads.append(threading.Thread(target=post, args=(url, request(n, side=side))))
            threads[-1].start()
            until(lambda held=0.75 * n: abs(health(url)["held_mb"] - held) < 0.02)
        answer = post(url, request(9, side=side))
        assert answer.status_code == 503 and "MB of requests already" in answer.json()["error"]
        scorer.gate.set()
        for thread in threads:
            thread.join()
        assert post(url, request(9, side=side)).status_code == 200


def half_sent(url, sent=b"half"):
    """A connection with the head of a request and a part of its body."""
    slow = http.client.HTTPConnection(urlsplit(url).netloc, timeout=LONG)
    slow.putrequest("POST", "/v1/score/mean")
    slow.putheader(PROTOCOL_HEADER, "2")
    slow.putheader("Content-Length", "100")
    slow.endheaders(sent)
    return slow


def test_bodies_that_are_half_sent_take_no_places():
    with background({"mean": Mean()}, queue_size=2) as url:
        slow = [half_sent(url) for _ in range(5)]
        until(lambda: health(url)["arriving"] == 5)
        assert post(url, request(7)).json()["raw"] == [7.0]
        for connection in slow:
            connection.close()
        until(lambda: health(url)["arriving"] == 0)
        assert health(url)["held_mb"] == 0 and health(url)["under_way"] == 0


def test_a_body_that_stands_still_is_cut_off_with_its_connection():
    with background({"mean": Mean()}, body_timeout=0.2) as url:
        slow = half_sent(url)
        answer = slow.getresponse()
        assert answer.status == 408 and b"within 0.2 s" in answer.read()
        assert answer.getheader("Connection") == "close"


def test_a_body_that_gets_on_has_more_time_than_one_that_stands_still(monkeypatch):
    monkeypatch.setattr(endpoints, "STEP", 10)
    for limit in (0.5, 15):  # more, where the machine stood still meanwhile
        with background({"mean": Mean()}, body_timeout=limit) as url:
            slow = half_sent(url, b"x" * 20)
            for _ in range(4):
                time.sleep(0.4 * limit)
                slow.send(b"x" * 20)
            if (status := slow.getresponse().status) != 408:
                break
    assert status == 400  # it was received, and is no request


def test_a_request_that_is_alone_is_never_refused_for_what_it_takes():
    admission = Admission(2, 100)
    with admission.request() as one:
        one.reserve(150)
        with admission.request() as two, pytest.raises(BusyError):
            two.reserve(1)
    with admission.request() as one, admission.request() as two:
        one.reserve(50)
        two.reserve(50)
        with pytest.raises(BusyError):
            one.reserve(1)
    assert (admission.arriving, admission.requests, admission.bytes) == (0, 0, 0)


def test_a_request_that_takes_too_long_is_answered_so():
    for limit in (0.3, 15):  # more, where the machine stood still while the request was on its way
        with held_server(request_timeout=limit) as (url, scorer):
            answer = post(url, request(1))
            if answer.status_code != 408:
                break
    assert answer.status_code == 503 and f"not scored within {limit:g} s" in answer.json()["error"]
    with held_server(request_timeout=0.3) as (url, scorer):
        slow = half_sent(url)
        assert slow.getresponse().status == 408
        slow.close()


def test_work_of_clients_that_left_is_not_done():
    with held_server(max_batch=1) as (url, scorer):
        threading.Thread(target=post, args=(url, request(1)), daemon=True).start()
        until(lambda: scorer.calls)
        with pytest.raises(requests.Timeout):
            post(url, request(2), timeout=(LONG, 0.3))
        until(lambda: health(url)["dropped"] == 1)
        assert health(url)["queue"] == {"mean": 0} and health(url)["under_way"] == 1
        scorer.gate.set()
        assert post(url, request(3)).json()["raw"] == [3.0]
        assert len(scorer.calls) == 2


def raw(url, data):
    with socket.create_connection(urlsplit(url).netloc.split(":"), timeout=LONG) as connection:
        with contextlib.suppress(ConnectionError):  # it may be answered, and closed, before all was sent
            connection.sendall(data)
        return connection.recv(4000)


def test_what_is_no_http_is_answered_and_logged_in_one_line(server, caplog):
    head = b"POST /v1/score/mean HTTP/1.1\r\nHost: x\r\nDiffrl-Protocol: 2\r\n"
    assert b" 400 " in raw(server, b"\x16\x03\x01 hello\r\n\r\n")
    assert b" 400 " in raw(server, head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
    assert b" 400 " in raw(server, head + b"Content-Length: -5\r\n\r\n")
    assert b" 413 " in raw(server, head + b"Content-Length: 99999999999999\r\nExpect: 100-continue\r\n\r\n")
    endless = b"Transfer-Encoding: chunked\r\n\r\n" + b"186a0\r\n%b\r\n" % (b"x" * 100_000) * 11
    assert b" 413 " in raw(server, head + endless)  # answered before it ends
    assert not [record for record in caplog.records if record.exc_info or record.levelno > logging.WARNING]
    assert health(server)["under_way"] == 0


PROGRAM = """
import sys
from reward_models.serving.server import serve
from tests.reward_models.serving.test_microbatch import Mean
class Slow(Mean):
    def __call__(self, batch):
        sys.stdin.readline()  # until the test says so
        return super().__call__(batch)
serve({"mean": Slow()}, port=0, ready=lambda url: print(url, flush=True))
print("ended", flush=True)
"""


@pytest.mark.long
def test_a_signal_lets_requests_finish_and_refuses_new_ones():
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = subprocess.Popen([sys.executable, "-c", PROGRAM], text=True, env=dict(os.environ), **pipes)
    try:
        url = process.stdout.readline().strip()
        answers = []
        thread = threading.Thread(target=lambda: answers.append(post(url, request(4, 5))))
        thread.start()
        until(lambda: health(url)["under_way"] == 1)
        process.send_signal(signal.SIGTERM)
        until(lambda: not _accepts(url))
        out, err = process.communicate("\n", timeout=LONG)
        thread.join()
        assert answers[0].json()["raw"] == [4.0, 5.0]
        assert process.returncode == 0 and out == "ended\n" and "Traceback" not in err
    finally:
        process.kill()


def _accepts(url):
    try:
        socket.create_connection(urlsplit(url).netloc.split(":"), timeout=1).close()
        return True
    except OSError:
        return False
