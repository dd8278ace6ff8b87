"""Requests joined into batches and split again: nobody's score depends on the others."""

import threading
import time

import pytest
import torch

from reward_models import RewardBatch, RewardError
from reward_models.base import ScorerSpec, WithoutWeights, output_of_rows
from reward_models.serving.microbatch import ClosedError, MicroBatcher, ScorerError
from tests.patience import LONG, until


class Mean(WithoutWeights):
    """The mean value; records its calls. Prompts make it fail: "crash", "refuse", "short", "unknown"."""

    def __init__(self, scope="sample", media=("image", "video")):
        self.spec = ScorerSpec("mean", "Mean value.", (0.0, 255.0), media=media, scope=scope)
        self.calls, self.threads, self.gate = [], set(), threading.Event()
        self.gate.set()

    def __call__(self, batch):
        self.calls.append((len(batch), list(batch.groups)))
        self.threads.add(threading.get_ident())
        self.gate.wait(LONG)
        if "crash" in batch.prompts:
            raise ZeroDivisionError("crashed on purpose")
        if "exit" in batch.prompts:
            raise SystemExit(0)
        if "refuse" in batch.prompts:
            raise RewardError("It does not fit.")
        means = batch.media.flatten(1).double().mean(1).tolist()
        rows = [
            (float("nan"), {}, "unknown prompt") if p == "unknown" else (m, {"twice": 2 * m}, None)
            for m, p in zip(means, batch.prompts, strict=True)
        ]
        return output_of_rows(rows[: -1 if "short" in batch.prompts else None], ["twice"])


def request(*values, side=5, prompt="p", fps=None, groups=()):
    media = torch.stack([torch.full((3, side, side), value, dtype=torch.uint8) for value in values])
    media = media[:, None].expand(-1, 2, -1, -1, -1) if fps else media
    return RewardBatch(media, [prompt] * len(values), (), fps, groups)


@pytest.fixture
def held():
    """A batcher whose scorer is busy with a first request until `gate` is set."""
    scorer = Mean()
    batcher = MicroBatcher(scorer, max_batch=8, max_wait_ms=0)
    scorer.gate.clear()
    batcher.submit(request(0))
    until(lambda: scorer.calls)
    yield scorer, batcher
    scorer.gate.set()
    batcher.close()


def results(jobs):
    return [job.future.result(LONG).raw.tolist() for job in jobs]


def test_large_samples_come_in_smaller_batches():
    scorer = Mean()
    batcher = MicroBatcher(scorer, max_batch=8, max_wait_ms=0, max_pixels=2 * 25)
    jobs = [
        batcher.submit(request(1, 2, 3)),
        batcher.submit(request(4, 5, side=11)),
        batcher.submit(request(6, fps=8.0)),
    ]
    assert results(jobs) == [[1, 2, 3], [4, 5], [6]]
    assert [count for count, _ in scorer.calls] == [2, 1, 1, 1, 1]
    batcher.close()


def test_waiting_requests_of_one_size_are_joined_and_split(held):
    scorer, batcher = held
    jobs = [batcher.submit(request(1, 2)), batcher.submit(request(9, side=7)), batcher.submit(request(3))]
    jobs += [batcher.submit(request(4, fps=8.0)), batcher.submit(request(5, fps=4.0)), batcher.submit(request(6, 7))]
    scorer.gate.set()
    assert results(jobs) == [[1, 2], [9], [3], [4], [5], [6, 7]]
    assert [count for count, _ in scorer.calls[1:]] == [5, 1, 1, 1]  # one size and one frame rate at a time
    assert jobs[5].future.result().parts["twice"].tolist() == [12, 14]
    assert len(scorer.threads) == 1


def test_a_batch_is_never_larger_than_allowed_and_large_requests_are_cut(held):
    scorer, batcher = held
    jobs = [batcher.submit(request(*range(1, 20))), *[batcher.submit(request(n, n, n)) for n in (21, 22, 23)]]
    scorer.gate.set()
    assert results(jobs) == [list(range(1, 20)), [21] * 3, [22] * 3, [23] * 3]
    assert [count for count, _ in scorer.calls[1:]] == [8, 8, 3, 6, 3]


@pytest.mark.parametrize(
    ("prompt", "error"),
    [("crash", ScorerError), ("refuse", RewardError), ("short", ScorerError), ("exit", ScorerError)],
)
def test_only_the_request_that_fails_fails(held, prompt, error):
    scorer, batcher = held
    good, bad, last = (batcher.submit(request(n, prompt=p)) for n, p in ((1, "p"), (2, prompt), (3, "unknown")))
    scorer.gate.set()
    assert results([good]) == [[1]] and last.future.result(LONG).errors == ["unknown prompt"]
    with pytest.raises(error):
        bad.future.result(LONG)
    assert results([batcher.submit(request(7))]) == [[7]]  # it goes on


def test_requests_of_groups_are_not_joined_and_groups_stay_whole():
    scorer = Mean("group")
    batcher = MicroBatcher(scorer, max_batch=4, max_wait_ms=50)
    scorer.gate.clear()
    jobs = [batcher.submit(request(*range(9), groups=[0, 1, 0, 1, 0, 2, 1, 0, 0]))]
    jobs += [batcher.submit(request(1)), batcher.submit(request(2))]  # one prompt, but not one group
    scorer.gate.set()
    assert results(jobs) == [list(range(9)), [1], [2]]
    assert scorer.calls == [(5, [0] * 5), (4, [1, 1, 1, 2]), (1, []), (1, [])]
    batcher.close()


def test_a_lone_request_waits_for_others_but_not_for_long():
    scorer = Mean()
    batcher = MicroBatcher(scorer, max_batch=4, max_wait_ms=300)
    start = time.monotonic()
    assert results([batcher.submit(request(1))]) == [[1]]
    assert 0.3 <= time.monotonic() - start < 60
    batcher.close()


def test_a_full_batch_waits_no_longer():
    scorer = Mean()
    batcher = MicroBatcher(scorer, max_batch=4, max_wait_ms=1000 * LONG)
    start = time.monotonic()
    jobs = [batcher.submit(request(0))]
    time.sleep(0.05)  # the batcher has seen the first, and waits
    jobs += [batcher.submit(request(n)) for n in (1, 2, 3)]
    assert results(jobs) == [[0], [1], [2], [3]] and [count for count, _ in scorer.calls] == [4]
    assert time.monotonic() - start < LONG / 2
    batcher.close()


def test_what_was_not_begun_can_be_dropped(held):
    scorer, batcher = held
    jobs = [batcher.submit(request(n)) for n in range(3)]
    assert batcher.cancel(jobs[1]) and len(batcher) == 2
    scorer.gate.set()
    assert results([jobs[0], jobs[2]]) == [[0], [2]]
    assert scorer.calls[1:] == [(2, [])] and not batcher.cancel(jobs[0])


def test_closing_fails_what_waits(held):
    scorer, batcher = held
    job = batcher.submit(request(1))
    batcher.close(timeout=0.1)  # the scorer is still busy with the first request
    with pytest.raises(ClosedError):
        job.future.result(LONG)
    with pytest.raises(ClosedError):
        batcher.submit(request(2))
    scorer.gate.set()
    batcher.close()
    assert len(scorer.calls) == 1
