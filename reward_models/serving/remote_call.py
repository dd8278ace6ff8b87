"""One batch on its way to reward servers: pieces side by side, attempts, the deadline, and what came back in order."""

from __future__ import annotations

import json
import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from reward_models.base import RewardBatch, RewardOutput, output_of_rows
from reward_models.errors import RewardError
from reward_models.serving.transport import Answer, Lane, Replicas, UnreachableError
from reward_models.serving.wire import Format, decode_output, encode_request

RETRIED = (408, 429, 500, 502, 503, 504)
"""Answers after which the same request may succeed later, or elsewhere."""
TICK = 0.05
"""Seconds between two looks at requests that may have to be cut off."""


@dataclass(frozen=True)
class Sending:
    """How pieces are sent.

    Args:
        reward: its name at the servers.
        version: that it must have.
        format: how media travel.
        timeout: seconds to connect, and from there to the end of the answer.
        attempts: for each piece.
    """

    reward: str
    version: str
    format: Format
    timeout: tuple[float, float]
    attempts: int


class Call:
    """A batch under way; used once.

    Args:
        batch: what is to be scored.
        pieces: rows of each request.
        sending: how they are sent.
        replicas: to whom.
        deadline: seconds from now until the batch ends, whatever is missing.
    """

    def __init__(
        self,
        batch: RewardBatch,
        pieces: Sequence[Sequence[int]],
        sending: Sending,
        replicas: Replicas,
        deadline: float,
    ) -> None:
        self.batch, self.pieces, self.sending, self.replicas = batch, pieces, sending, replicas
        self.deadline, self.until = deadline, time.monotonic() + deadline
        self._left = deque(range(len(pieces)))
        self._outputs: dict[int, RewardOutput] = {}
        self._failures: dict[int, str] = {}
        self._error: BaseException | None = None
        self._stop, self._changed = threading.Event(), threading.Condition()
        self._running = 0

    def run(self, lanes: Sequence[Lane]) -> tuple[RewardOutput, Sequence[Lane]]:
        """Send all pieces, one at a time through each lane, and cut off what takes too long.

        Returns:
            The scores in the batch's order, NaN where there are none, and the lanes that are free again.

        Raises:
            RewardError: a server refuses a piece, or its reward is another than at the start.
        """
        self._running = len(lanes)
        for lane in lanes:
            threading.Thread(target=self._work, args=(lane,), name="reward client", daemon=True).start()
        try:
            with self._changed:
                while self._running and self._error is None and time.monotonic() < self.until + 2 * TICK:
                    self._changed.wait(TICK)
                    for lane in lanes:
                        if time.monotonic() >= lane.expires:
                            lane.cut()
        finally:  # also when the user interrupts: what is still under way is of no use any more
            self._stop.set()
            done = not self._running
            for lane in () if done else lanes:
                lane.cut()
        if self._error is not None:
            raise self._error
        return self._gathered(), lanes if done else ()

    def _work(self, lane: Lane) -> None:
        try:
            while not self._stop.is_set() and (number := self._next()) is not None:
                self._send(number, lane)
        except BaseException as error:  # raised again in the caller's thread
            self._error = error
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify()

    def _next(self) -> int | None:
        with self._changed:
            return self._left.popleft() if self._left else None

    def _send(self, number: int, lane: Lane) -> None:
        """Try a piece until it is scored, or there is no attempt or no time left."""
        kind, body = encode_request(self.batch.rows(self.pieces[number]), self.sending.format)
        scored, silent, told = len(self._outputs), True, ""
        for attempt in range(1, self.sending.attempts + 1):
            address, pause = self.replicas.pick()
            if time.monotonic() + pause >= self.until or self._stop.wait(pause):
                return
            after, why = 0.0, ""
            try:
                answer = self._ask(lane, address, kind, body, len(self.pieces[number]))
                if answer.status == 200:
                    self._outputs[number] = self._read(address, answer, len(self.pieces[number]))
                    self.replicas.worked(address)
                    return
                if answer.status not in RETRIED:
                    raise refused(address, answer)
                silent = False
                after, why = answer.retry_after, f"{address} answered {answer.status}: {said(answer)}"
            except UnreachableError as error:
                why = f"{address}: {error}"
            except ValueError as error:
                why = f"{address} sent what is no answer: {error}"
            self.replicas.failed(address, after)
            told = f"no score after attempt {attempt} of {self.sending.attempts}: {why}"
            self._failures[number] = told
        if silent and len(self._outputs) == scored:  # nobody is there: the other pieces need not find out one by one
            while (other := self._next()) is not None:
                self._failures[other] = told

    def _ask(self, lane: Lane, address: str, kind: str, body: bytes, count: int) -> Answer:
        return lane.ask(
            "POST",
            f"{address}/v1/score/{self.sending.reward}",
            self.sending.timeout,
            self.until,
            body,
            {"Content-Type": kind},
            most=(1 << 20) + count * (1 << 16),
        )

    def _read(self, address: str, answer: Answer, count: int) -> RewardOutput:
        output, version = decode_output(answer.body, count)
        expected, reward = self.sending.version, self.sending.reward
        if version != expected:
            raise RewardError(
                f"A reward must stay the same during a run. {address} has version {version!r} of the reward {reward}, "
                f"at the start it was {expected!r}. Serve that version again, or start anew."
            )
        return output

    def _gathered(self) -> RewardOutput:
        """The outputs in the batch's order; NaN where there is none."""
        rows: list[tuple[float, Mapping[str, float], str | None]] = [(math.nan, {}, None)] * len(self.batch)
        names: dict[str, None] = {}
        late = f"the deadline of {self.deadline:g} s is over"
        for number, members in enumerate(self.pieces):
            output = self._outputs.get(number)
            if output is None:
                why = self._failures.get(number)
                for row in members:
                    rows[row] = (math.nan, {}, why or f"no score: {late}")
                continue
            names.update(dict.fromkeys(output.parts))
            for place, row in enumerate(members):
                parts = {name: float(values[place]) for name, values in output.parts.items()}
                rows[row] = (float(output.raw[place]), parts, output.errors[place])
        return output_of_rows(rows, list(names))


def said(answer: Answer) -> str:
    """The sentence in a server's answer, or the beginning of whatever it is."""
    try:
        sentence = json.loads(answer.body)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        sentence = answer.body[:200].decode(errors="replace")
    return str(sentence)[:600] or "nothing"


def refused(address: str, answer: Answer) -> RewardError:
    """The error of an answer that would be the same again."""
    if answer.status in (401, 403):
        return RewardError(
            f"The reward server {address} wants another token: {said(answer)} Put the right one into the environment "
            "variable DIFFRL_REWARD_TOKEN, or into the one that token_env names."
        )
    if 300 <= answer.status < 400:
        place = answer.headers.get("Location", "nowhere")[:200]
        return RewardError(f"The reward server's address must be its own. {address} redirects to {place}. Give that.")
    return RewardError(f"The reward server {address} refuses ({answer.status}): {said(answer)}")
