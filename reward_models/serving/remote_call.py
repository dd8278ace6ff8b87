"""One batch on its way to reward servers: pieces side by side, attempts, the deadline, and what came back in order."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass

from reward_models.base import RewardBatch, RewardOutput, output_of_pieces
from reward_models.common.errors import RewardError
from reward_models.serving.replicas import Replicas
from reward_models.serving.transport import Answer, Client, UnreachableError, side_by_side
from reward_models.serving.wire import PROTOCOL, PROTOCOL_HEADER, SAFETENSORS, decode_output, encode_request

RETRIED = (408, 429, 500, 502, 503, 504)
"""Answers after which the same request may succeed later, or elsewhere."""


@dataclass(frozen=True)
class Servers:
    """Servers of one reward, and how they are asked."""

    reward: str  # its name there
    version: str  # that it must have
    timeout: tuple[float, float]  # seconds to connect, and from there to the end of the answer
    attempts: int  # for each piece of a batch
    deadline: float  # seconds until a batch ends, whatever is missing
    client: Client  # through which connections
    replicas: Replicas  # whose turn it is


class Call:
    """A batch under way, in pieces of some rows each; used once."""

    def __init__(self, batch: RewardBatch, pieces: Sequence[Sequence[int]], servers: Servers) -> None:
        self.batch, self.pieces, self.servers = batch, pieces, servers
        self.until = time.monotonic() + servers.deadline
        self._failures = [f"no score: the deadline of {servers.deadline:g} s is over"] * len(pieces)
        self._scored = 0
        self._nobody: str | None = None
        """Why pieces that are not begun need not find out one by one that no server answers."""

    async def run(self, concurrency: int) -> RewardOutput:
        """Send all pieces, so many at a time.

        Returns:
            The scores in the batch's order, NaN where there are none.

        Raises:
            RewardError: a server refuses a piece, or its reward is another than at the start.
        """
        self.servers.replicas.begin()
        outputs = await side_by_side(self._send, len(self.pieces), concurrency, self.until)
        scored = [(rows, output) for rows, output in zip(self.pieces, outputs, strict=True) if output is not None]
        why = {row: reason for rows, reason in zip(self.pieces, self._failures, strict=True) for row in rows}
        return output_of_pieces(scored, len(self.batch), why)

    async def _send(self, number: int) -> RewardOutput | None:
        """Try a piece until it is scored, or there is no attempt or no time left."""
        if self._nobody is not None:
            self._failures[number] = self._nobody
            return None
        rows = self.pieces[number]
        body = await asyncio.to_thread(lambda: encode_request(self.batch.rows(rows)))
        scored, silent = self._scored, True
        for attempt in range(1, self.servers.attempts + 1):
            address, pause = self.servers.replicas.pick()
            if time.monotonic() + pause >= self.until:
                return None
            await asyncio.sleep(pause)
            after, why = 0.0, ""
            try:
                answer = await self._post(address, body, len(rows))
                if answer.status == 200:
                    output = self._read(address, answer, len(rows))
                    self.servers.replicas.worked(address)
                    self._scored += 1
                    return output
                if answer.status not in RETRIED:
                    raise refused(address, answer)
                silent = False
                after, why = answer.retry_after, f"{address} answered {answer.status}: {sentence_of(answer)}"
            except UnreachableError as error:
                why = f"{address}: {error}"
            except ValueError as error:
                why = f"{address} sent what is no answer: {error}"
            self.servers.replicas.failed(address, after)
            self._failures[number] = f"no score after attempt {attempt} of {self.servers.attempts}: {why}"
        if silent and self._scored == scored:
            self._nobody = self._failures[number]
        return None

    async def _post(self, address: str, body: bytes, count: int) -> Answer:
        return await self.servers.client.ask(
            "POST",
            f"{address}/v1/score/{self.servers.reward}",
            self.servers.timeout,
            self.until,
            body,
            {"Content-Type": SAFETENSORS, PROTOCOL_HEADER: str(PROTOCOL)},
            most=(1 << 20) + count * (1 << 16),
        )

    def _read(self, address: str, answer: Answer, count: int) -> RewardOutput:
        output, version = decode_output(answer.body, count)
        expected, reward = self.servers.version, self.servers.reward
        if version != expected:
            raise RewardError(
                f"A reward must stay the same during a run. {address} has version {version!r} of the reward {reward}, "
                f"at the start it was {expected!r}. Serve that version again, or start anew."
            )
        return output


def sentence_of(answer: Answer) -> str:
    """Return the sentence in a server's answer, or the beginning of whatever it is."""
    try:
        sentence = json.loads(answer.body)["error"]
    except (ValueError, KeyError, TypeError, RecursionError):
        sentence = answer.body[:200].decode(errors="replace")
    return str(sentence)[:600] or "nothing"


def refused(address: str, answer: Answer) -> RewardError:
    """Return the error of an answer that would be the same again."""
    if answer.status in (401, 403):
        return RewardError(
            f"The reward server {address} wants another token: {sentence_of(answer)} Put the right one into the "
            "environment variable DIFFRL_REWARD_TOKEN, or into the one that token_env names."
        )
    if 300 <= answer.status < 400:
        target = answer.headers.get("Location", "nowhere")[:200]
        return RewardError(f"The reward server's address must be its own. {address} redirects to {target}. Give that.")
    return RewardError(f"The reward server {address} refuses ({answer.status}): {sentence_of(answer)}")
