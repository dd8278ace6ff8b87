"""An explorer: a process that draws the samples which a run elsewhere trains on, behind HTTP (`diffrl explore`).

GET /health, POST /v1/draw, POST /v1/weights/SHA256. It is opened by the run's own configuration, holds the pipeline
and, with `rollout.draw`, its low-precision copy, and gets the trained weights from the run. Noise is addressed, so the
same weights draw the same samples here as there. Errors are answered as {"error": sentence}.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import hashlib
import json
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from typing import TypeVar

import safetensors
import safetensors.torch
from fastapi import FastAPI
from starlette.requests import ClientDisconnect, Request

from diffrl.config import Config
from diffrl.cost.meter import CostMeter
from diffrl.errors import ConfigError, DiffrlError
from diffrl.models.encodings import PromptEncodings
from diffrl.models.loading import choose_device
from diffrl.records import Prompt, PromptBatch
from diffrl.rollout.explorer import PROTOCOL, Asked, encode_answer, read_asked
from diffrl.rollout.regenerate import regenerate
from diffrl.rollout.tree import plan_forest, root_addresses
from diffrl.training.explorers import BROKEN, STALE, UNLIKE, recorded_steps, sampling_facts
from diffrl.training.policy import Policy
from diffrl.training.sampling import full_sampler
from diffrl.training.session import open_adapter, open_copy, open_rounded, rollout_sigmas
from reward_models.serving.endpoints import Guarded, require_understood
from reward_models.serving.server import guarded_app
from reward_models.serving.wire import SAFETENSORS, Limits, RefusedError

T = TypeVar("T")
ASKED_BYTES = 1 << 24
"""What a question may have beside the weights."""


class Explorer(Guarded):
    """State and answers of an explorer.

    Args:
        config: of the run that it draws for.
        token: what clients must show, or None.

    Raises:
        ConfigError: this machine cannot draw by this configuration.
    """

    def __init__(self, config: Config, token: str | None) -> None:
        if config.objective.trains_pairs or config.rollout.explore is not None or config.model.facts.edits:
            raise ConfigError(
                "An explorer draws the samples of a run whose configuration may have rollout.explorers: without pairs, "
                "rollout.explore and images to edit. Got one that has. Give another configuration."
            )
        device = choose_device(config.model.device)
        self.config = config
        self.adapter = open_adapter(config, device)
        self.policy = Policy(self.adapter, config.model.adapters, config.run.seed)
        self.copy = open_copy(config, self.policy, device)
        self.meter = CostMeter()
        self.meter.watch(self.policy.networks() if self.copy is None else [self.copy.module], config.model.dtype)
        sigmas = rollout_sigmas(self.adapter, config)
        self.sampler = full_sampler(config.rollout, sigmas, open_rounded(config, sigmas))
        self.encode = PromptEncodings(self.adapter)
        self.facts = sampling_facts(config, self.copy)
        self.weights = ""  # SHA-256 of the trained weights, as they came
        self.samples = 0
        self._one_at_a_time = asyncio.Lock()
        size = sum(one.numel() * one.element_size() for one in self.policy.parameters.values()) * 1.01 + ASKED_BYTES
        super().__init__("explorer", token, Limits(max_body_mb=size / 1e6, max_held_mb=4 * size / 1e6, queue_size=64))

    async def health(self, request: Request) -> bytes:
        """Tell that it is there, what it has drawn, and by which weights."""
        facts = {
            "uptime_s": round(time.monotonic() - self.started, 1),
            "weights": self.weights,
            "samples": self.samples,
            "answers": {str(status): count for status, count in sorted(self.answers.items())},
        }
        return json.dumps(facts).encode()

    async def draw(self, request: Request) -> bytes:
        """Draw what is asked for, if it would be the same there."""
        require_understood(request, PROTOCOL)
        with self.admission.request() as ticket:
            body = await self.body(request, ticket)
            ticket.enter()
            try:
                asked = read_asked(bytes(body))
            except ValueError as error:
                rule = "A question names facts, weights, iteration, groups and prompts."
                raise RefusedError(400, f"{rule} Got {error}.") from None
            self._require_alike(asked.facts)
            async with self._one_at_a_time:
                if await request.is_disconnected():  # while others were drawn: nobody waits for it
                    raise ClientDisconnect
                if asked.weights != self.weights:
                    here = self.weights[:12] or "none"
                    raise RefusedError(
                        STALE, f"Weights {asked.weights[:12]} must be here. Got {here}. Send them first."
                    )
                try:
                    return await in_daemon_thread(lambda: self._draw(asked))
                except DiffrlError as error:
                    raise RefusedError(BROKEN, str(error)) from None

    async def take(self, request: Request) -> bytes:
        """Take the trained weights."""
        require_understood(request, PROTOCOL)
        digest = request.path_params["digest"]
        with self.admission.request() as ticket:
            body = await self.body(request, ticket)
            ticket.enter()
            async with self._one_at_a_time:
                if digest != self.weights:  # or another rank has sent them
                    await in_daemon_thread(lambda: self._load(digest, bytes(body)))
        return json.dumps({"weights": digest}).encode()

    def _require_alike(self, facts: dict[str, str]) -> None:
        others = [name for name in {**self.facts, **facts} if facts.get(name) != self.facts.get(name)]
        if others:
            seen = "; ".join(f"{name}: {facts.get(name)} there, {self.facts.get(name)} here" for name in others[:3])
            raise RefusedError(
                UNLIKE,
                "Explorer and run must have the same pipeline, settings and versions: give both one configuration. Got "
                f"{seen}.",
            )

    def _load(self, digest: str, body: bytes) -> None:
        if hashlib.sha256(body).hexdigest() != digest:
            raise RefusedError(422, f"Weights must have the SHA-256 of their address. Got others than {digest[:12]}.")
        self.weights = ""
        try:
            self.policy.restore(safetensors.torch.load(body))
            if self.copy is not None:
                self.copy.sync_weights(self.policy.inner)
        except (safetensors.SafetensorError, DiffrlError) as error:
            raise RefusedError(422, f"Weights must be those that this configuration trains. {error}") from None
        self.weights = digest

    def _draw(self, asked: Asked) -> bytes:
        rollout, before = self.config.rollout, self.meter.evaluations["rollout"]
        batch = PromptBatch([Prompt(text) for text in asked.prompts], asked.groups, asked.iteration)
        forest = plan_forest(len(batch.prompts), rollout.tree.roots, rollout.branching_at(batch.iteration))
        with nullcontext() if self.copy is None else self.copy.in_place_of(self.adapter):
            whole = regenerate(
                adapter=self.adapter,
                conditioning=self.encode(batch.prompts),
                batch=batch,
                forest=forest,
                roots=root_addresses(forest, batch, self.config.run.seed),
                sampler=self.sampler,
                record=recorded_steps(self.config, forest),
                decode_batch=rollout.decode_batch,
                prompts_at_once=rollout.prompts_at_once,
            )
        self.samples += len(forest)
        return encode_answer(whole, self.meter.evaluations["rollout"] - before)


async def in_daemon_thread(work: Callable[[], T]) -> T:
    """Return what is done in a thread that, unlike one of the event loop's own, holds up no end of the process."""
    done: concurrent.futures.Future[T] = concurrent.futures.Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # of whatever kind: who waits is told
            done.set_exception(error)

    threading.Thread(target=run, name="explorer", daemon=True).start()
    return await asyncio.wrap_future(done)


def make_explorer_app(explorer: Explorer) -> FastAPI:
    """Return an explorer as an ASGI application."""
    app = guarded_app(explorer, "There are GET /health, POST /v1/draw and POST /v1/weights/SHA256.")
    app.add_route("/health", explorer.endpoint(explorer.health, public=True), methods=["GET"])
    app.add_route("/v1/draw", explorer.endpoint(explorer.draw, media_type=SAFETENSORS), methods=["POST"])
    app.add_route("/v1/weights/{digest}", explorer.endpoint(explorer.take), methods=["POST"])
    return app
