"""The client of the reward server: right scores from sick services, NaN from dead ones, never a hang or a zero."""

import asyncio
import concurrent.futures
import contextlib
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from reward_models import RewardBatch, RewardError, load_reward
from reward_models.base import ScorerSpec
from reward_models.serving.server import background
from reward_models.serving.transport import _loop, wait_for
from tests.patience import LONG, held_port, until
from tests.reward_models.serving.rogue import ROGUES, STOP, rogue, says, whole, zeros
from tests.reward_models.serving.test_microbatch import Mean, request
from tests.reward_models.serving.test_server import TOKEN, health

PATIENT = {"timeout": (30, 30), "retries": 1, "backoff": 0.02, "deadline": 60.0, "wait": 0.0}  # for those that are well
QUICK = {**PATIENT, "timeout": (0.25, 0.25), "wait": 60.0}


def remote(*urls, **options):
    return load_reward("remote", **{"reward": "mean", "urls": list(urls), **PATIENT, **options})


@pytest.fixture(scope="module")
def server():
    with background({"mean": Mean(), "images": Mean(media=("image",))}, max_wait_ms=0) as url:
        yield url


@pytest.fixture(autouse=True)
def nothing_is_left_to_do():
    yield
    until(lambda: not asyncio.all_tasks(_loop()))


def dead(output, count, words):
    """Nothing but NaN, not ok, with a sentence."""
    assert output.raw.isnan().all() and not output.ok.any() and len(output.raw) == count
    assert all(words in error for error in output.errors), output.errors


def test_scores_parts_and_errors_are_the_scorers_own(server):
    media = torch.randint(0, 256, (11, 3, 37, 53), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    for batch in (
        RewardBatch(media, ["p", "unknown"] * 5 + ["q"]),
        RewardBatch(media.reshape(11, 1, 3, 37, 53).expand(-1, 2, -1, -1, -1), ["unknown"] + ["p"] * 10, fps=8.0),
    ):
        expected = Mean()(batch)
        output = remote(server, chunk=2, concurrency=3)(batch)
        assert torch.equal(output.raw.nan_to_num(-1), expected.raw.nan_to_num(-1))
        assert torch.equal(output.parts["twice"].nan_to_num(-1), expected.parts["twice"].nan_to_num(-1))
        assert output.ok.equal(expected.ok) and output.errors == expected.errors


def test_work_is_shared_by_replicas_and_comes_back_in_order():
    scorers = [Mean(), Mean()]
    with background({"mean": scorers[0]}) as first, background({"mean": scorers[1]}) as second:
        scorer = remote(first, second, chunk=3)
        for _ in range(2):
            assert scorer(request(*range(40))).raw.tolist() == list(range(40))
    counts = [sum(count for count, _ in scorer.calls) for scorer in scorers]
    assert sum(counts) == 80 and min(counts) >= 20


def test_metadata_groups_and_frame_rate_arrive():
    seen = []

    class Recorder(Mean):
        def __call__(self, batch):
            seen.append((list(batch.prompts), list(batch.metadata), batch.fps, list(batch.groups)))
            return super().__call__(batch)

    with background({"mean": Recorder("group")}) as url:
        metadata = [{"target": f"t{n}", "n": [n, None]} for n in range(5)]
        batch = RewardBatch(request(*range(5), fps=8.0).media, list("abcde"), metadata, 7.5, [3, 4, 3, 4, 3])
        assert remote(url, chunk=3, concurrency=1)(batch).raw.tolist() == [0, 1, 2, 3, 4]
        by_prompt = RewardBatch(request(*range(4)).media, ["x", "y", "x", "y"])
        assert remote(url, chunk=1, concurrency=1)(by_prompt).raw.tolist() == [0, 1, 2, 3]
    picked = [[metadata[n] for n in rows] for rows in ([0, 2, 4], [1, 3])]
    assert seen[:2] == [(["a", "c", "e"], picked[0], 7.5, [3, 3, 3]), (["b", "d"], picked[1], 7.5, [4, 4])]
    assert [prompts for prompts, *_ in seen[2:]] == [["x", "x"], ["y", "y"]]


def test_pieces_are_what_the_server_takes_on():
    with background({"mean": Mean()}, max_samples=3, max_body_mb=0.05) as url:
        assert remote(url, chunk=100)(request(*range(7))).raw.tolist() == list(range(7))
        assert remote(url)(request(*range(7), side=60)).raw.tolist() == list(range(7))  # 10.8 kB each
        with pytest.raises(RewardError, match=r"refuses \(413\)"):
            remote(url)(request(1, side=200))


WAITED_FOR = ("hangs", "drips its head", "drips its body", "drips chunks", "floods", "never reads")
"""Rogues that are left only when their time is over; the deadline's test has one of them every time."""
ALL_ROGUES = [pytest.param(how, marks=pytest.mark.long if how in WAITED_FOR else ()) for how in ROGUES]


@pytest.mark.parametrize("how", ALL_ROGUES)
def test_a_sick_server_means_nan_in_time(how):
    side = 2000 if how == "never reads" else 5  # more than the socket's buffers take
    with rogue(how) as sick:
        scorer = remote(sick.url, **QUICK, chunk=2)
        start = time.monotonic()
        dead(scorer(request(1, 2, 3, side=side)), 3, "no score after attempt 2 of 2: " + sick.url)
        assert time.monotonic() - start < QUICK["deadline"] - 10  # by its time-outs, not by the deadline
        until(lambda: sick.heads)


@pytest.mark.parametrize("how", ["resets", pytest.param("never reads", marks=pytest.mark.long)])
def test_a_healthy_replica_takes_over(how, server):
    side = 2000 if how == "never reads" else 5
    with rogue(how) as sick:
        scorer = remote(sick.url, server, chunk=1, timeout=(1, 1), retries=6, wait=60.0, deadline=LONG)
        for _ in range(2):
            assert scorer(request(1, 2, 3, side=side)).raw.tolist() == [1, 2, 3]
        until(lambda: sick.heads)


@pytest.mark.long
def test_sending_has_the_time_of_the_answer_not_that_of_connecting():
    with rogue(says(whole("200 OK", zeros(1))), late=0.8) as slow:
        assert remote(slow.url, timeout=(0.3, 60), retries=0)(request(1, side=2000)).raw.tolist() == [0]


def test_the_deadline_ends_a_batch_whatever_happens():
    with rogue("drips its body") as sick:
        start = time.monotonic()
        output = remote(sick.url, deadline=0.6, chunk=1, concurrency=2)(request(1, 2, 3))
        assert 0.5 < time.monotonic() - start < 30
        dead(output, 3, "no score")
        assert "deadline of 0.6 s" in output.errors[2]


def test_what_was_scored_before_the_deadline_is_kept():
    def slowly(connection, number):
        if number > 1:
            STOP.wait(LONG)
        connection.sendall(whole("200 OK", zeros(1).replace(b"0.0", b"42.0")))

    for deadline in (0.6, 20):  # more, where the machine stood still
        with rogue(slowly) as sick:
            output = remote(sick.url, deadline=deadline, chunk=1, concurrency=1)(request(1, 2))
        if output.ok.any():
            break
    assert output.ok.tolist() == [True, False] and output.raw[0] == 42 and output.raw[1].isnan()


PROGRAM = """
import sys, time
from reward_models.serving.server import serve
from tests.reward_models.serving.test_microbatch import Mean
class Stuck(Mean):
    def __call__(self, batch):
        if len(self.calls) == 3:  # until it is killed
            time.sleep(3600)
        return super().__call__(batch)
serve({"mean": Stuck()}, port=int(sys.argv[1]), ready=lambda url: print(url, flush=True))
"""


@pytest.mark.long
def test_a_server_killed_in_the_middle_of_a_batch_and_one_that_comes_back():
    with held_port() as port, contextlib.ExitStack() as end:
        process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(port)], stdout=subprocess.PIPE, text=True)
        end.callback(process.communicate)
        end.callback(process.kill)
        url = process.stdout.readline().strip()
        scorer = remote(url, chunk=1, concurrency=2)

        def kill():
            until(lambda: health(url)["samples"] >= 3)
            process.kill()

        threading.Thread(target=kill).start()
        start = time.monotonic()
        output = scorer(request(*range(100)))
        assert time.monotonic() - start < PATIENT["deadline"] - 10
        scored = int(output.ok.sum())
        assert 0 < scored < 100 and output.raw[output.ok].tolist() == [float(n) for n in output.ok.nonzero()]
        assert output.raw[~output.ok].isnan().all() and all("no score" in e for e in output.errors if e)
        start = time.monotonic()
        dead(scorer(request(*range(100))), 100, "refused")
        assert time.monotonic() - start < 30  # not the attempts of each of 100 pieces
        with background({"mean": Mean()}, port=port):
            assert scorer(request(*range(9))).raw.tolist() == list(range(9))


@pytest.mark.long
def test_a_server_says_when_to_come_again():
    good = whole("200 OK", zeros(1).replace(b"0.0", b"42.0"))
    busy = whole("429 Too Many Requests", b'{"error": "busy"}', "Retry-After: 1")
    with rogue(lambda connection, number: connection.sendall(busy if number == 1 else good)) as sick:
        start = time.monotonic()
        assert remote(sick.url)(request(1)).raw.tolist() == [42]
        assert 1.0 <= time.monotonic() - start < 30
    late = whole("503 Service Unavailable", b"{}", "Retry-After: 9999")
    with rogue(says(late)) as sick:
        start = time.monotonic()
        dead(remote(sick.url)(request(1)), 1, "answered 503")
        assert time.monotonic() - start < 30  # it would come too late: no need to wait


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (whole("401 Unauthorized", b'{"error": "No."}'), "wants another token: No. Put the right one"),
        (whole("404 Not Found", b'{"error": "Unknown."}'), r"refuses \(404\): Unknown."),
        (whole("413 Content Too Large", b'["error"]'), r"refuses \(413\)"),
        (whole("307 Temporary Redirect", b"", "Location: http://other/"), "redirects to http://other/"),
        (whole("200 OK", zeros(1).replace(b'"1"', b'"2"')), "version '2' of the reward mean, at the start it was '1'"),
    ],
)
def test_mistakes_that_stay_are_raised_at_once(answer, words):
    with rogue(says(answer)) as sick, pytest.raises(RewardError, match=words):
        remote(sick.url, retries=50, chunk=1)(request(1, 2, 3, 4, 5, 6))
    assert len(sick.heads) <= 4


def test_the_batch_is_checked_before_it_is_sent(server):
    with pytest.raises(RewardError, match="scores images"):
        remote(server, reward="images")(request(1, fps=8.0))
    with background({"mean": Mean()}) as url:
        scorer = remote(url)
        scorer.spec = ScorerSpec("mean", "x", (0, 1), requires=("target",))
        with pytest.raises(RewardError, match="needs target"):
            scorer(request(1))
    none = RewardBatch(torch.zeros(2, 0, 3, 5, 7, dtype=torch.uint8), ["a", "b"])
    dead(remote(server)(none), 2, "no frames")


def test_a_start_without_a_server_says_what_to_do(server):
    with pytest.raises(RewardError, match=r"No reward server answers at http://127.0.0.1:9: .*refused.*--reward mean"):
        remote("http://127.0.0.1:9")
    with pytest.raises(RewardError, match="has no reward 'beauty'. It has: images, mean"):
        remote(server, reward="beauty")
    with rogue("hangs", b"<html>hello</html>") as other, pytest.raises(RewardError, match="no diffrl reward server"):
        remote(other.url)
    with background({"mean": Mean()}, token=TOKEN) as url, pytest.raises(RewardError, match="wants another token"):
        remote(url)
    edits = {"kept": load_reward("preservation", features="pixels")}
    with background(edits) as url, pytest.raises(RewardError, match="edits of cannot be asked .* name: preservation"):
        remote(url, reward="kept")
    changed = Mean()
    changed.spec = ScorerSpec("mean", "Mean value.", (0.0, 255.0), media=("image", "video"), version="2")
    with (
        background({"mean": changed}) as url,
        pytest.raises(RewardError, match="in one version. .* it has version: 1, 2"),
    ):
        remote(server, url)


def test_a_server_that_comes_up_later_is_waited_for():
    with held_port() as port, contextlib.ExitStack() as stack:
        starter = threading.Timer(0.5, lambda: stack.enter_context(background({"mean": Mean()}, port=port)))
        starter.start()
        assert remote(f"http://127.0.0.1:{port}", wait=60.0)(request(3)).raw.tolist() == [3]
        starter.join()


def test_a_signal_that_reaches_another_thread_ends_the_waiting(monkeypatch):
    """The system gives a process's signal to any thread, as after a stop; Python's handler runs in the main thread."""

    class RangError(BaseException):
        """No OSError: asyncio swallows one where it wakes its loop."""

    def ring(number, frame):
        raise RangError

    waited, waiting, wait = [], threading.Event(), concurrent.futures.wait

    def watched(*arguments):
        waiting.set()
        return wait(*arguments)

    async def work():
        while not waiting.is_set():
            await asyncio.sleep(0.001)
        signal.pthread_kill(threading.get_ident(), signal.SIGUSR1)
        await asyncio.sleep(LONG)
        waited.append(LONG)

    monkeypatch.setattr(concurrent.futures, "wait", watched)
    before = signal.signal(signal.SIGUSR1, ring)
    try:
        with pytest.raises(RangError):
            wait_for(work())
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert not waited


def test_the_token_comes_from_the_environment(monkeypatch):
    with background({"mean": Mean()}, token=TOKEN) as url:
        monkeypatch.setenv("MY_TOKEN", TOKEN)
        assert remote(url, token_env="MY_TOKEN")(request(3)).raw.tolist() == [3]
        monkeypatch.setenv("DIFFRL_REWARD_TOKEN", TOKEN)
        assert remote(url)(request(3)).raw.tolist() == [3]
        with pytest.raises(RewardError, match="'NO_TOKEN' is not set"):
            remote(url, token_env="NO_TOKEN")


def test_a_proxy_is_not_asked_for_this_machine(server, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert remote(server)(request(3)).raw.tolist() == [3]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"urls": []}, "either url or urls. Got neither"),
        ({"url": "http://h:1", "urls": ["http://h:2"]}, "Got both"),
        ({"urls": ["localhost:8123"]}, "http://HOST:PORT"),
        ({"timeout": [5]}, "timeout"),
        ({"deadline": 0}, "deadline .* a number of at least 0.001. Got 0"),
        ({"chunk": 0}, "chunk"),
        ({"reward": "../x"}, "reward must be the name"),
    ],
)
def test_options_are_checked(options, words):
    with pytest.raises(RewardError, match=words):
        load_reward("remote", **{"reward": "mean", "urls": ["http://127.0.0.1:9"], **QUICK, **options})
