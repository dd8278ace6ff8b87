"""A reward that a server computes: the client of `diffrl serve` (docs/reward-server.md)."""

from __future__ import annotations

import asyncio
import math
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from urllib.parse import urlsplit

from reward_models.base import RewardBatch, RewardOutput, ScorerSpec, WithoutWeights, output_of_rows
from reward_models.common.errors import RewardError
from reward_models.media import batches_of
from reward_models.registry import SCORERS
from reward_models.serving.remote_call import RETRIED, Call, Servers, refused, sentence_of
from reward_models.serving.replicas import Replicas
from reward_models.serving.transport import Client, UnreachableError, require_number, wait_for
from reward_models.serving.wire import PROTOCOL, TOKEN_VARIABLE, Limits, decode_listing, decode_spec


class RemoteScorer(WithoutWeights):
    """Any reward behind a diffrl reward server, with that reward's own scores, parts and errors, bit for bit.

    Its spec is the served reward's, asked for at the start. A batch is cut into pieces that are sent side by side, to
    all replicas by turns. What fails for a reason that may pass (no connection, no answer in time, half an answer, 408,
    429, 5xx) is tried again after a pause that doubles, elsewhere first. After the last attempt, or at the deadline,
    the samples are NaN with an error, never a number. What would fail again (wrong token, unknown reward, a batch that
    the server refuses, another version of the reward than at the start) raises.

    Args:
        url: address of the server, "http://127.0.0.1:8123".
        urls: instead of `url`, addresses of several servers of the same reward in the same version.
        reward: the name under which the server has it.
        timeout: seconds to connect, and from there until a piece of a batch is sent, scored and answered.
        retries: attempts after the first; every further replica adds one.
        backoff: seconds before the second attempt at a server; doubles up to 30, times a random factor in [0.5, 1].
        deadline: seconds after which a batch ends, whatever is missing.
        wait: seconds to wait at the start for a server that is not up yet.
        token_env: environment variable with the server's token; default: DIFFRL_REWARD_TOKEN, if it is set.
        chunk: samples of a piece; a reward of groups gets whole groups.
        concurrency: pieces under way at one time.

    Raises:
        RewardError: an option is wrong, or a server does not answer, has no such reward or wants another token.
    """

    spec = ScorerSpec(
        name="remote",
        description="Any reward that a diffrl reward server computes.",
        range=(-math.inf, math.inf),
        media=("image", "video"),
        remote=True,
    )

    def __init__(
        self,
        *,
        reward: str,
        url: str | None = None,
        urls: Sequence[str] = (),
        timeout: Sequence[float] = (5.0, 60.0),
        retries: int = 4,
        backoff: float = 0.5,
        deadline: float = 300.0,
        wait: float = 10.0,
        token_env: str | None = None,
        chunk: int = 16,
        concurrency: int = 4,
    ) -> None:
        if not isinstance(reward, str) or not re.fullmatch(r"[A-Za-z0-9_.-]+", reward):
            raise RewardError(f"reward must be the name of a reward that the server has. Got {reward!r}.")
        if not isinstance(timeout, Sequence) or isinstance(timeout, str) or len(timeout) != 2:
            raise RewardError(f"timeout of the reward remote must be 2 numbers of seconds. Got {timeout!r}.")
        seconds = {"timeout": timeout[0], "deadline": deadline, "backoff": backoff, "wait": wait}
        for name, value in [*seconds.items(), ("timeout", timeout[1])]:
            require_number(
                f"{name} of the reward remote, in seconds,", value, 0 if name in ("backoff", "wait") else 1e-3
            )
        for name, count, least in (("retries", retries, 0), ("chunk", chunk, 1), ("concurrency", concurrency, 1)):
            require_number(f"{name} of the reward remote", count, least, whole=True)
        self.reward, self.urls = reward, _addresses(url, urls)
        self.connect, self.answer = map(float, timeout)
        self.chunk, self.concurrency = chunk, concurrency
        self._client = Client(self.urls[0], _token(token_env))
        listed = [wait_for(self._listed(address, time.monotonic() + wait)) for address in self.urls]
        specs = [asdict(spec) for spec, _ in listed]
        unlike = [key for key in specs[0] if any(other[key] != specs[0][key] for other in specs)]
        if unlike:
            seen = "; ".join(f"{key}: {', '.join(str(other[key]) for other in specs)}" for key in unlike[:3])
            raise RewardError(
                f"All servers must have the same reward {reward} in one version. At {', '.join(self.urls)} it has "
                f"{seen}. Bring them to one."
            )
        self.spec = replace(listed[0][0], remote=True)
        self._limits = [limits for _, limits in listed]
        self._servers = Servers(
            reward=reward,
            version=self.spec.version,
            timeout=(self.connect, self.answer),
            attempts=retries + len(self.urls),
            deadline=deadline,
            client=self._client,
            replicas=Replicas(self.urls, backoff),
        )

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Have the batch scored; ends within `deadline` seconds (and the moment it takes to cut off the rest).

        Raises:
            RewardError: see the class.
        """
        self.spec.require(batch)
        if not len(batch) or not batch.media.numel():
            return output_of_rows([(math.nan, {}, "the clip has no frames")] * len(batch))
        return wait_for(Call(batch, self._pieces(batch), self._servers).run(self.concurrency))

    def _pieces(self, batch: RewardBatch) -> list[list[int]]:
        """Return the rows of each request, within what all servers take on."""
        sample = math.prod(batch.media.shape[1:])
        room = (
            min(max(limits.max_body_mb - limits.max_side_mb, limits.max_body_mb / 2) for limits in self._limits) * 1e6
        )
        most = min(self.chunk, max(1, int(room // sample)), *(limits.max_samples for limits in self._limits))
        keys = list(batch.groups or batch.prompts) if self.spec.scope == "group" else ()
        return batches_of(range(len(batch)), most, keys)

    async def _listed(self, address: str, until: float) -> tuple[ScorerSpec, Limits]:
        """Return what a server says of the reward; waits for it to come up."""
        timeout = (self.connect, min(self.answer, 10.0))
        while True:
            try:
                answer = await self._client.ask("GET", f"{address}/v1/rewards", timeout, math.inf)
                if answer.status not in RETRIED:
                    break
                why = f"it answered {answer.status}: {sentence_of(answer)}"
            except UnreachableError as error:
                why = str(error)
            if time.monotonic() >= until:
                raise RewardError(
                    f"No reward server answers at {address}: {why}. Start one there: diffrl serve "
                    f"--reward {_served(self.reward)} --port {urlsplit(address).port or 80}. Or correct the address."
                )
            await asyncio.sleep(0.2)
        if answer.status != 200:
            raise refused(address, answer)
        try:
            listing = decode_listing(answer.body)
            spec = decode_spec(listing.rewards[self.reward]) if self.reward in listing.rewards else None
        except ValueError as error:
            raise RewardError(f"{address} is no diffrl reward server: {error}. Correct the address.") from error
        if listing.protocol != PROTOCOL:
            raise RewardError(
                f"A reward server and its clients speak one protocol. {address} speaks {listing.protocol}, this is "
                f"{PROTOCOL}. Install the same version of diffrl on both sides."
            )
        if spec is None:
            raise RewardError(
                f"The server {address} has no reward {self.reward!r}. It has: {', '.join(sorted(listing.rewards))}."
            )
        if spec.uses_source:
            raise RewardError(
                "A reward that looks at the images that samples are edits of cannot be asked over the network. "
                f"Got {self.reward!r} of {address}. Name it without a server: name: {spec.name}."
            )
        return spec, listing.limits


def _served(reward: str) -> str:
    """Return what `--reward` takes to serve it under this name; where the name is a label, the reward is left open."""
    return reward if reward in SCORERS else f"{reward}=NAME"


def _addresses(url: str | None, urls: Sequence[str]) -> list[str]:
    several = [urls] if isinstance(urls, str) else list(urls)
    if (url is None) == (not several):
        raise RewardError(
            f"The reward remote needs either url or urls. Got {'neither' if url is None else 'both'}. For a server on "
            "this machine: url: http://127.0.0.1:8123."
        )
    addresses = [str(address).rstrip("/") for address in (several if url is None else [url])]
    for address in addresses:
        parts = urlsplit(address)
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username:
            raise RewardError(f"A server's address is http://HOST:PORT or https://HOST:PORT. Got {address!r}.")
    if len(set(addresses)) < len(addresses):
        raise RewardError(f"urls must be different servers. Got {', '.join(addresses)}.")
    return addresses


def _token(variable: str | None) -> str | None:
    """Return the token of the environment variable; the default one may be missing."""
    token = os.environ.get(variable or TOKEN_VARIABLE)
    if variable is not None and not token:
        raise RewardError(f"token_env names an environment variable with the server's token. {variable!r} is not set.")
    return token or None
