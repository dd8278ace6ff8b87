"""Explorers from the trainer's side: prompts are dealt out to them, and what they answer becomes a rollout.

An explorer that does not answer, or answers nonsense, is left alone for a while and its prompts are given to another;
prompts that nobody has drawn by the deadline end the run. Nothing is drawn by fewer than were asked for in silence, and
nothing that is missing becomes a number.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import safetensors.torch
import torch
from torch import Tensor

from diffrl import __version__, pulse
from diffrl.config.schema import Config
from diffrl.errors import ExplorerError, ExplorersGone, GuardStop
from diffrl.models.loading import DTYPES
from diffrl.precision.copies import PolicyCopy
from diffrl.records import Forest, PromptBatch, Rollout
from diffrl.rollout.explorer import PROTOCOL, Asked, TreeAnswer, decode_answer, join_answers
from diffrl.rollout.tree import plan_forest
from diffrl.training.inputs import digest_sampling
from diffrl.training.session import Session
from reward_models.serving.remote_call import RETRIED, sentence_of
from reward_models.serving.replicas import Replicas
from reward_models.serving.transport import POLL, Answer, Client, UnreachableError, begin, side_by_side, wait_for
from reward_models.serving.wire import PROTOCOL_HEADER

CONNECT = 5.0
"""Seconds in which an explorer has to be reached, and to say that it is there."""
UNLIKE = 412
"""Answer of an explorer whose samples would be others."""
STALE = 409
"""Answer of an explorer that has other weights."""
BROKEN = 424
"""Answer of an explorer whose samples have broken down."""
MOST = 1 << 34
"""Bytes of an answer."""
PLACES = ("path", "revision", "device", "offload", "compile", "vae_slicing", "vae_tiling", "attention")
APART = {
    "model": {"init_from", "allow_distilled"}.union(PLACES),
    "rollout": {"explorers", "micro_batch", "decode_batch", "prompts_at_once"},
    "model.lora": {"start"},
    "rollout.draw": {"engine", "compile", "sync_every", "fidelity"},
}
"""Keys that do not say what is drawn, or only how it is rounded; of files there are digests, and weights are sent."""


def sampling_facts(config: Config, copy: PolicyCopy | None) -> dict[str, str]:
    """Return what samples depend on besides prompts and weights, by name: explorer and run must have the same.

    Args:
        config: of the run.
        copy: the low-precision copy that draws, if one does.
    """
    dump = config.model_dump(mode="json")
    sections = {"model": dump["model"], "rollout": dump["rollout"]}
    sections |= {"model.lora": dump["model"]["lora"], "rollout.draw": dump["rollout"]["draw"]}
    facts = {"diffrl": __version__, "run.seed": str(config.run.seed), **digest_sampling(config)}
    for section, values in sections.items():
        for key in (values or {}).keys() - APART[section] - {"lora", "draw"}:
            facts[f"{section}.{key}"] = json.dumps(values[key], sort_keys=True)
    if copy is not None:
        facts["rollout.draw.engine"] = copy.report.engine
    return facts


def recorded_steps(config: Config, forest: Forest) -> list[int]:
    """Return the stochastic steps of a forest that a rollout keeps."""
    return list(forest.branching) if config.records_steps else []


@dataclass
class Flight:
    """An iteration that is being drawn.

    Args:
        batch: its prompts.
        sizes: how many of them each part has.
        forests: of the parts.
        weights: that draw, as a safetensors file, and its SHA-256.
        until: instant of `time.monotonic` at which what is missing is given up.
        troubles: what has gone wrong, by address, and not since gone right.
        working: addresses that have drawn.
        future: the parts, in order.
    """

    batch: PromptBatch
    sizes: Sequence[int]
    forests: Sequence[Forest]
    weights: tuple[bytes, str]
    until: float
    troubles: dict[str, str] = field(default_factory=dict)
    working: set[str] = field(default_factory=set)
    future: concurrent.futures.Future[list[TreeAnswer | None]] | None = None


class Explorers:
    """Draws iterations elsewhere.

    Args:
        session: everything loaded.
    """

    def __init__(self, session: Session):
        settings = session.config.rollout.explorers
        assert settings is not None
        self.settings, self.config, self.session = settings, session.config, session
        self.facts = sampling_facts(self.config, session.copy)
        nothing = session.adapter.init_latents(lambda shape: torch.zeros(1, *shape, device=session.device))
        self._latent_shape = tuple(nothing.shape[1:])
        token, first = os.environ.get(settings.token_env) or None, session.ranks.rank % len(settings.servers)
        self._clients = {address: Client(address, token) for address in settings.servers}
        self._replicas = Replicas([*settings.servers[first:], *settings.servers[:first]], backoff=0.5)
        self._flight: Flight | None = None
        self._failing = set[str]()

    def begin(self, batch: PromptBatch, weights: Mapping[str, Tensor]) -> None:
        """Have an iteration drawn, and go on at once.

        Args:
            batch: its prompts.
            weights: the trained ones that draw it, by name; they may change once this returns.
        """
        self.forget()
        file = safetensors.torch.save({name: one.detach().cpu().contiguous() for name, one in weights.items()})
        parts = min(len(batch.prompts), len(self.settings.servers))
        sizes = [len(batch.prompts) * (i + 1) // parts - len(batch.prompts) * i // parts for i in range(parts)]
        rollout = self.config.rollout
        branching = rollout.branching_at(batch.iteration)
        forests = [plan_forest(size, rollout.tree.roots, branching) for size in sizes]
        until = time.monotonic() + self.settings.deadline
        flight = Flight(batch, sizes, forests, (file, hashlib.sha256(file).hexdigest()), until)
        flight.future = begin(self._draw(flight))
        self._flight = flight

    def forget(self) -> None:
        """Give up what is being drawn: of other weights, or of an iteration that is made again."""
        if self._flight is not None and self._flight.future is not None:
            self._flight.future.cancel()
        self._flight = None

    def take(self, batch: PromptBatch, weights: Mapping[str, Tensor], report: Callable[[str], None]) -> Rollout:
        """Return an iteration's rollout, which may have been begun before.

        Args:
            batch: its prompts.
            weights: that draw it if nothing of it was begun.
            report: is told, once, of each explorer that fails, and when it draws again.

        Raises:
            ExplorerError: an explorer refuses what it is asked, for it would draw something else.
            GuardStop: what is drawn holds NaN or inf.
            ExplorersGone: nobody has drawn some of the prompts by the deadline.
        """
        if self._flight is None or self._flight.batch.iteration != batch.iteration:
            self.begin(batch, weights)
        flight, self._flight = self._flight, None
        assert flight is not None and flight.future is not None
        try:
            while not concurrent.futures.wait([flight.future], POLL).done:
                self._tell(flight, report)
        except BaseException:  # a signal, which is to end what is under way
            flight.future.cancel()
            raise
        parts = flight.future.result()
        self._tell(flight, report)
        there = [part for part in parts if part is not None]
        if len(there) < len(parts):
            missing = sum(size for size, part in zip(flight.sizes, parts, strict=True) if part is None)
            why = "; ".join(f"{address}: {reason}" for address, reason in flight.troubles.items())
            raise ExplorersGone(
                f"Explorers must draw an iteration within rollout.explorers.deadline={self.settings.deadline:g} s. Got "
                f"no samples for {missing} of {len(batch.prompts)} prompts. {why or 'None has answered yet'}. Start "
                "the explorers again."
            )
        shapes = {part.images.shape[1:] for part in there}
        if len(shapes) > 1:
            raise ExplorerError(f"All explorers must draw images of one size. Got {sorted(map(tuple, shapes))}.")
        rollout, evaluations = self.config.rollout, sum(part.evaluations for part in there)
        self.session.meter.add("rollout", evaluations, self._precision)
        pulse.advance(pulse.NETWORK, evaluations)
        pulse.advance(pulse.DECODED, sum(len(part.images) for part in there))
        branching = rollout.branching_at(batch.iteration)
        forest = plan_forest(len(batch.prompts), rollout.tree.roots, branching)
        kept, device = recorded_steps(self.config, forest), self.session.device
        return join_answers(batch, forest, self.session.sigmas, kept, there, flight.sizes, device)

    def _tell(self, flight: Flight, report: Callable[[str], None]) -> None:
        for address, why in list(flight.troubles.items()):
            if address not in self._failing:
                self._failing.add(address)
                report(f"The explorer {address} does not draw: {why}. Its prompts wait for another one, or for it.")
        for address in flight.working & self._failing:
            self._failing.discard(address)
            report(f"The explorer {address} draws again.")

    @property
    def _precision(self) -> str:
        copy = self.session.copy
        return self.config.model.dtype if copy is None else copy.report.precision

    async def _draw(self, flight: Flight) -> list[TreeAnswer | None]:
        self._replicas.begin()
        starts = [sum(flight.sizes[:i]) for i in range(len(flight.sizes))]
        return await side_by_side(
            lambda i: self._part(flight, starts[i], flight.sizes[i], flight.forests[i]),
            len(flight.sizes),
            len(flight.sizes),
            flight.until,
        )

    async def _part(self, flight: Flight, start: int, size: int, forest: Forest) -> TreeAnswer | None:
        """Have some prompts drawn, by whichever explorer does it, until there is no time left."""
        rows = slice(start, start + size)
        batch = flight.batch
        asked = Asked(
            facts=self.facts,
            weights=flight.weights[1],
            iteration=batch.iteration,
            groups=list(batch.groups[rows]),
            prompts=[prompt.text for prompt in batch.prompts[rows]],
        )
        body = asked.model_dump_json().encode()
        while True:
            address, pause = self._replicas.pick()
            if time.monotonic() + pause >= flight.until:
                return None
            await asyncio.sleep(pause)
            after = 0.0
            try:
                answer = await self._ask(address, flight, body)
                if answer.status == 200:
                    part = await asyncio.to_thread(self._read, answer.body, forest)
                    self._replicas.worked(address)
                    flight.troubles.pop(address, None)
                    flight.working.add(address)
                    return part
                if answer.status == BROKEN:
                    raise GuardStop(sentence_of(answer))
                if answer.status not in (*RETRIED, STALE):
                    raise _refused(address, answer, self.settings.token_env)
                after, why = answer.retry_after, f"it answered {answer.status}: {sentence_of(answer)}"
            except UnreachableError as error:
                why = str(error)
            except ValueError as error:
                why = f"it sent what is no answer: {error}"
            self._replicas.failed(address, after)
            flight.troubles[address] = why

    def _read(self, body: bytes, forest: Forest) -> TreeAnswer:
        steps, dtype = recorded_steps(self.config, forest), DTYPES[self.config.rollout.latents_dtype]
        return decode_answer(body, forest, steps, self._latent_shape, dtype)

    async def _ask(self, address: str, flight: Flight, body: bytes) -> Answer:
        """Ask an explorer that is there to draw; one that has other weights is sent these, once."""
        client = self._clients[address]
        await client.ask("GET", f"{address}/health", (CONNECT, CONNECT), flight.until)  # one that hangs ends here
        for _ in range(2):
            answer = await self._post(address, "draw", body, flight.until, MOST)
            if answer.status != STALE:
                return answer
            sent = await self._post(address, f"weights/{flight.weights[1]}", flight.weights[0], flight.until)
            if sent.status != 200:
                return sent
        return answer

    async def _post(self, address: str, what: str, body: bytes, until: float, most: int = 1 << 20) -> Answer:
        return await self._clients[address].ask(
            "POST",
            f"{address}/v1/{what}",
            (CONNECT, self.settings.timeout),
            until,
            body,
            {PROTOCOL_HEADER: str(PROTOCOL)},
            most=most,
        )


def _refused(address: str, answer: Answer, token_env: str) -> ExplorerError:
    """Return the error of an answer that would be the same again."""
    sentence = sentence_of(answer)
    if answer.status in (401, 403):
        return ExplorerError(
            f"The explorer {address} wants another token: {sentence} Put the right one into the environment variable "
            f"{token_env}."
        )
    return ExplorerError(f"The explorer {address} refuses ({answer.status}): {sentence}")


def that_answer(addresses: Sequence[str]) -> list[str]:
    """Return the addresses at which an explorer is."""

    async def answers(number: int) -> bool:
        address = addresses[number]
        try:
            answer = await Client(address, None).ask("GET", f"{address}/health", (CONNECT, CONNECT), until)
            return answer.status == 200
        except UnreachableError:
            return False

    until = time.monotonic() + 2 * CONNECT
    there = wait_for(side_by_side(answers, len(addresses), len(addresses), until))
    return [address for address, answer in zip(addresses, there, strict=True) if answer]
