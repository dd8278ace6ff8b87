"""One thread a scorer, which joins waiting requests into batches and splits the scores again.

What is scored together is only a matter of speed: requests are joined where their media have one size and one frame
rate, never for scorers of groups, and if a joined batch fails each request is tried alone, so that it fails by itself.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch

from reward_models.asking import ask
from reward_models.base import RewardBatch, RewardOutput, Scorer, output_of_pieces
from reward_models.common.errors import BrokenScorerError, RewardError
from reward_models.common.messages import describe, printable
from reward_models.media import batches_of

log = logging.getLogger(__name__)


class ScorerError(Exception):
    """The scorer raised what it should not, or returned what is no output."""


class ClosedError(Exception):
    """The service is shutting down."""


@dataclass(eq=False)
class Job:
    """A request that waits for its scores."""

    batch: RewardBatch
    future: Future[RewardOutput] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)

    @property
    def key(self) -> Hashable:
        """Jobs with one key may share a batch."""
        return (self.batch.media.shape[1:], self.batch.fps)


class MicroBatcher:
    """Scores requests one batch at a time, in order of arrival.

    Args:
        scorer: called from this batcher's thread only.
        max_batch: samples that the scorer gets at once; larger requests are cut, but groups stay whole.
        max_wait_ms: how long the first request of a batch that is not full waits for others.
        max_pixels: of the samples that the scorer gets at once, all frames; one sample may have more.
    """

    def __init__(
        self, scorer: Scorer, max_batch: int = 16, max_wait_ms: float = 5.0, max_pixels: int = 4096 * 4096
    ) -> None:
        self.scorer, self.max_batch, self.max_wait = scorer, max_batch, max_wait_ms / 1000
        self.max_pixels = max_pixels
        self.batches = 0
        self._waiting: deque[Job] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=f"scorer {scorer.spec.name}", daemon=True)
        self._thread.start()

    def __len__(self) -> int:
        """Requests that wait."""
        return len(self._waiting)

    def submit(self, batch: RewardBatch) -> Job:
        """Queue a request; its `future` gets the output, a `RewardError`, `ScorerError` or `ClosedError`."""
        job = Job(batch)
        with self._changed:
            if self._closed:
                raise ClosedError
            self._waiting.append(job)
            self._changed.notify()
        return job

    def cancel(self, job: Job) -> bool:
        """Drop a request that has not been started; whether it could be."""
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
            return job.future.cancel()

    def close(self, timeout: float = 5.0) -> None:
        """Let the batch under way end, fail what waits, and stop the thread."""
        with self._changed:
            self._closed = True
            left, self._waiting = list(self._waiting), deque()
            self._changed.notify()
        for job in left:
            if job.future.set_running_or_notify_cancel():
                job.future.set_exception(ClosedError())
        self._thread.join(timeout)

    def _work(self) -> None:
        while True:
            jobs = self._take()
            if not jobs:
                return
            self._score(jobs)
            del jobs  # or the last batch's media would be held until the next request

    def _take(self) -> list[Job]:
        """Wait for a request, then for others that fit; empty when closed."""
        with self._changed:
            while not self._waiting and not self._closed:
                self._changed.wait()
            while not self._closed and self._waiting:
                jobs = self._fitting()
                left = jobs[0].arrived + self.max_wait - time.monotonic()
                full = sum(len(job.batch) for job in jobs) >= self._most(jobs[0].batch)
                if full or left <= 0 or self.scorer.spec.scope == "group":
                    for job in jobs:
                        self._waiting.remove(job)
                    jobs = [job for job in jobs if job.future.set_running_or_notify_cancel()]
                    if jobs:
                        return jobs
                else:
                    self._changed.wait(left)
                while not self._waiting and not self._closed:
                    self._changed.wait()
            return []

    def _fitting(self) -> list[Job]:
        """Return the request that has waited longest, and those that may join it."""
        first = self._waiting[0]
        jobs, count, most = [first], len(first.batch), self._most(first.batch)
        if self.scorer.spec.scope == "sample":
            for job in list(self._waiting)[1:]:
                if job.key == first.key and count + len(job.batch) <= most:
                    jobs.append(job)
                    count += len(job.batch)
        return jobs

    def _most(self, batch: RewardBatch) -> int:
        """Return samples of such media that are given to the scorer at once."""
        pixels = math.prod(batch.media.shape[1:]) // 3
        return max(1, min(self.max_batch, self.max_pixels // max(1, pixels)))

    def _score(self, jobs: Sequence[Job]) -> None:
        try:
            output = self._run(jobs[0].batch if len(jobs) == 1 else _joined([job.batch for job in jobs]))
        except (RewardError, ScorerError) as error:
            if len(jobs) == 1:
                jobs[0].future.set_exception(error)
                return
            for job in jobs:
                self._score([job])
            return
        start = 0
        for job in jobs:
            job.future.set_result(output.rows(range(start, start + len(job.batch))))
            start += len(job.batch)

    def _run(self, batch: RewardBatch) -> RewardOutput:
        """Score a batch in pieces of as many samples as are given to the scorer at once."""
        keys = list(batch.groups or batch.prompts) if self.scorer.spec.scope == "group" else []
        pieces = batches_of(range(len(batch)), self._most(batch), keys)
        if len(pieces) == 1:
            return self._call(batch)
        return output_of_pieces([(piece, self._call(batch.rows(piece))) for piece in pieces], len(batch), {})

    def _call(self, batch: RewardBatch) -> RewardOutput:
        self.batches += 1
        name = self.scorer.spec.name
        try:
            return ask(self.scorer, batch, name)
        except (BrokenScorerError, MemoryError, torch.OutOfMemoryError, KeyboardInterrupt) as error:  # its own, here
            log.exception("The reward %s failed on %d samples of shape %s", name, len(batch), batch.media.shape[1:])
            raise ScorerError(describe(error.__cause__) if error.__cause__ else printable(error)) from error


def _joined(batches: Sequence[RewardBatch]) -> RewardBatch:
    """Return one batch of several; ids of groups, which may collide, are left out: no scorer of samples reads them."""
    return RewardBatch(
        torch.cat([batch.media for batch in batches]),
        [prompt for batch in batches for prompt in batch.prompts],
        [batch.meta(row) for batch in batches for row in range(len(batch))],
        batches[0].fps,
    )
