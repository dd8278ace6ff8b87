"""The endpoints of the scoring service, without the server around them (server.py).

GET /health, GET /v1/rewards, POST /v1/score/{name}. Errors are answered as {"error": sentence}; what is wrong with a
request never reaches the log, what is wrong with a scorer does.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from reward_models.base import RewardBatch, RewardOutput, Scorer
from reward_models.common.errors import RewardError
from reward_models.serving.admission import Admission, BusyError, Ticket
from reward_models.serving.microbatch import ClosedError, MicroBatcher, ScorerError
from reward_models.serving.wire import (
    PROTOCOL,
    PROTOCOL_HEADER,
    Limits,
    RefusedError,
    decode_request,
    encode_listing,
    encode_output,
)

log = logging.getLogger(__name__)
JSON = "application/json"
RETRY_AFTER = 1
"""Seconds that a client is asked to wait when the service is full."""
STEP = 256_000
"""Bytes of a body that have to arrive in each `Limits.body_timeout`, unless it ends before."""
CLOSING = "The server is shutting down. Ask again later."


class Guarded:
    """What every service shares: the token, bodies within limits, refusals as answers, and counts of them.

    Args:
        name: of the service, for its log.
        token: what clients must show, or None.
        limits: what is taken on.
    """

    def __init__(self, name: str, token: str | None, limits: Limits) -> None:
        self.name, self.limits, self.token, self.closing = name, limits, token, False
        self.admission = Admission(limits.queue_size, int(limits.max_held_mb * 1e6))
        self.started = time.monotonic()
        self.answers: Counter[int] = Counter()
        self.dropped = 0

    def endpoint(
        self, handler: Callable[[Request], Awaitable[bytes]], public: bool = False, media_type: str = JSON
    ) -> Callable[[Request], Awaitable[Response]]:
        """Return a handler as an endpoint: it wants the token, refusals become answers, answers are counted."""

        async def answer(request: Request) -> Response:
            try:
                if not public:
                    self.check_token(request.headers.get("authorization", ""))
                return self.reply(200, await handler(request), media_type=media_type)
            except RefusedError as refusal:
                return self.refuse(refusal.status, refusal.sentence)
            except ClientDisconnect:
                self.dropped += 1
                return self.reply(499, b"")  # nobody reads it
            except asyncio.CancelledError:  # the time for finishing at the end is over
                return self.refuse(503, CLOSING)
            except Exception:  # of a handler or a scorer, of any class: the client is answered, and the server goes on
                log.exception("The %s failed on a request", self.name)
                return self.refuse(500, "The server failed on this request; its log says why.")

        return answer

    def refuse(self, status: int, sentence: str) -> Response:
        """Answer with an error."""
        headers = {
            401: {"WWW-Authenticate": "Bearer"},
            408: {"Connection": "close"},  # or a body that stands still would keep its connection
            503: {"Retry-After": str(RETRY_AFTER)},
        }.get(status)
        return self.reply(status, json.dumps({"error": sentence}).encode(), headers)

    def reply(
        self, status: int, body: bytes, headers: Mapping[str, str] | None = None, media_type: str = JSON
    ) -> Response:
        """Answer."""
        self.answers[status] += 1
        return Response(body, status, headers, media_type)

    def check_token(self, header: str) -> None:
        """Refuse a request without the token."""
        if self.token is None:
            return
        kind, _, shown = header.partition(" ")
        right = hmac.compare_digest(shown.strip().encode(), self.token.encode())
        if kind.lower() != "bearer" or not right:
            got = "a wrong one" if shown else "none"
            raise RefusedError(401, f"This server asks for a token: 'Authorization: Bearer TOKEN'. Got {got}.")

    async def body(self, request: Request, ticket: Ticket) -> bytearray:
        """Receive the body, holding no more of it than allowed, for as long as it gets on."""
        most = int(self.limits.max_body_mb * 1e6)
        length = request.headers.get("content-length", "0")
        size = int(length) if length.isdecimal() and len(length) < 20 else most + 1
        too_large = RefusedError(
            413, f"A request may have {self.limits.max_body_mb:g} MB. Got more. Send fewer at once."
        )
        if size > most:
            raise too_large
        body, step = bytearray(), STEP
        try:
            async with asyncio.timeout(self.limits.body_timeout) as patience:
                async for piece in request.stream():
                    if len(body) + len(piece) > most:
                        raise too_large
                    ticket.reserve(len(piece))
                    body += piece
                    if len(body) >= step:
                        step = len(body) + STEP
                        patience.reschedule(asyncio.get_running_loop().time() + self.limits.body_timeout)
        except TimeoutError:
            sentence = (
                f"Every {STEP / 1000:g} kB of a request must arrive within {self.limits.body_timeout:g} s. Got "
                f"{len(body) / 1000:.0f} kB and then too little. Ask again, or raise body_timeout of the server."
            )
            raise RefusedError(408, sentence) from None
        return body


class Service(Guarded):
    """State and answers of the scoring service.

    Args:
        rewards: scorers by the name that clients ask for.
        token: what clients must show, or None.
        limits: what is taken on.
    """

    def __init__(self, rewards: Mapping[str, Scorer], token: str | None, limits: Limits) -> None:
        super().__init__("reward server", token, limits)
        batching = limits.max_batch, limits.max_wait_ms, limits.max_batch_pixels
        self.batchers = {name: MicroBatcher(scorer, *batching) for name, scorer in rewards.items()}
        self.samples = 0

    def close(self) -> None:
        """Stop the scorers' threads; requests that still wait are answered 503."""
        self.closing = True
        end = time.monotonic() + 5
        for batcher in self.batchers.values():
            batcher.close(timeout=0)
        for batcher in self.batchers.values():
            batcher.close(timeout=max(0.0, end - time.monotonic()))

    async def health(self, request: Request) -> bytes:
        """Tell whether it is ready, for how long, what waits and what it has done."""
        facts = {
            "ready": not self.closing,
            "uptime_s": round(time.monotonic() - self.started, 1),
            "queue": {name: len(batcher) for name, batcher in self.batchers.items()},
            "arriving": self.admission.arriving,
            "under_way": self.admission.requests,
            "held_mb": round(self.admission.bytes / 1e6, 3),
            "answers": {str(status): count for status, count in sorted(self.answers.items())},
            "samples": self.samples,
            "batches": {name: batcher.batches for name, batcher in self.batchers.items()},
            "dropped": self.dropped,
        }
        return json.dumps(facts).encode()

    async def rewards(self, request: Request) -> bytes:
        """Tell the specs of the scorers, and the limits and the protocol that clients keep to."""
        return encode_listing({name: batcher.scorer.spec for name, batcher in self.batchers.items()}, self.limits)

    async def score(self, request: Request) -> bytes:
        """Score the request's batch."""
        name = request.path_params["name"]
        batcher = self.batchers.get(name)
        if batcher is None:
            known = ", ".join(sorted(self.batchers))
            raise RefusedError(404, f"There is no reward {name[:80]!r} here. Known: {known}.")
        require_understood(request, PROTOCOL)
        received = False
        try:
            async with asyncio.timeout(self.limits.request_timeout):
                with self.admission.request() as ticket:
                    body = await self.body(request, ticket)
                    ticket.enter()
                    received = True
                    batch = await asyncio.to_thread(decode_request, body, self.limits, ticket.reserve)
                    output = await self._scores(request, batcher, batch)
        except TimeoutError:
            what, limit = ("scored" if received else "received"), f"{self.limits.request_timeout:g} s"
            sentence = f"The request was not {what} within {limit}. Ask again, or send less at once."
            raise RefusedError(503 if received else 408, sentence) from None
        self.samples += len(batch)
        return encode_output(output, batcher.scorer.spec.version)

    async def _scores(self, request: Request, batcher: MicroBatcher, batch: RewardBatch) -> RewardOutput:
        """Have the batch scored, unless the client goes away before it is begun."""
        name = batcher.scorer.spec.name
        try:
            batcher.scorer.spec.require(batch)  # before it could be joined with others
            job = batcher.submit(batch)
            answer = asyncio.wrap_future(job.future)
            gone = asyncio.ensure_future(_disconnected(request))
            try:
                both: set[asyncio.Future[Any]] = {answer, gone}
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
                if not answer.done():
                    raise ClientDisconnect
                return answer.result()
            finally:
                gone.cancel()
                batcher.cancel(job)
                answer.cancel()
        except RewardError as error:
            raise RefusedError(422, str(error)) from None
        except ScorerError as error:
            raise RefusedError(500, f"The reward {name} failed on this request: {str(error)[:300]}.") from None
        except ClosedError:
            raise BusyError(CLOSING) from None


def require_understood(request: Request, version: int) -> None:
    """Refuse clients of another version of the protocol, and bodies that grow when they are unpacked."""
    protocol = request.headers.get(PROTOCOL_HEADER)
    if protocol != str(version):
        raise RefusedError(
            400,
            f"This server takes requests with the header '{PROTOCOL_HEADER}: {version}'. Got "
            f"{protocol[:20] if protocol else 'none'}. Install the same version of diffrl on both sides.",
        )
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise RefusedError(415, "A request's body must not be compressed. Send it without Content-Encoding.")


async def _disconnected(request: Request) -> None:
    """Return when the client has gone; after the body nothing else is received."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
