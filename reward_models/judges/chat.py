"""A client of OpenAI-compatible servers (`/v1/chat/completions` of vLLM, SGLang, llama.cpp, OpenAI, ...).

Images travel as lossless PNG. Requests run at once up to a limit; those that fail for a passing reason are repeated,
on the next server if there are several. Whatever happens, a request ends: with an answer, or with a reason; and a batch
by its deadline, or at once if the user interrupts it.
"""

from __future__ import annotations

import asyncio
import base64
import io
import json
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from torch import Tensor

from reward_models.common.errors import RewardError
from reward_models.media import to_pil
from reward_models.serving.transport import Answer, Client, UnreachableError, require_number, side_by_side, wait_for
from reward_models.text.answers import AnswerError, shortened

LONGEST_WAIT = 60.0
"""Between two attempts, in seconds, whatever the server asks for."""
LARGEST_REPLY = 16 * 2**20
"""Bytes of a reply; a judge's is some kilobytes."""


@dataclass(frozen=True)
class Reply:
    """What a model said.

    Args:
        text: without its thinking, where that is marked with <think>.
        complete: False if it was cut off at max_tokens.
        first_token: the likeliest first tokens and their log probabilities, if they were asked for.
    """

    text: str
    complete: bool
    first_token: Sequence[tuple[str, float]]


@dataclass
class _Batch:
    """Questions under way.

    Args:
        deadline: seconds that the batch may take.
        until: instant of `time.monotonic` at which it ends, whatever is missing.
        problems: what went wrong at the last attempt of a question.
        dead: whether the last that is known of the servers is that none answered.
    """

    deadline: float
    until: float
    problems: dict[int, str] = field(default_factory=dict)
    dead: bool = False

    @property
    def over(self) -> bool:
        """Whether no further attempt may begin."""
        return time.monotonic() >= self.until

    def late(self, number: int) -> str:
        """Return why a question has no answer that was not given in time, with what went wrong before."""
        before = self.problems.get(number)
        return f"no answer by the batch's deadline of {self.deadline:g} s" + (f"; before, {before}" if before else "")


class ChatClient:
    """Asks a model on one or several servers.

    A request is repeated after a time-out, a broken connection and the statuses 408, 429 and 5xx, at most `retries`
    times, after backoff * 2^n seconds or what Retry-After says (at most a minute). Everything else fails at once. Once
    a request got no answer in all its attempts, later ones of the same batch have one attempt until one is answered, so
    that a dead server does not hold up a batch for long.
    The time-out bounds an attempt as a whole, also where a server sends a byte now and then; the deadline bounds a
    batch, and what has no answer by then is a failure. Redirects are not followed: they would take the images, and
    the key, elsewhere. The key is sent in one header only, and is cut out of messages.

    Args:
        url: of the server, with or without /v1; several are used in turn.
        model: as the server names it.
        api_key_env: name of the environment variable that holds the key; none is sent without it.
        timeout: seconds of an attempt.
        retries: attempts after the first.
        backoff: seconds before the second attempt, doubled before each further one.
        deadline: seconds after which a batch ends, whatever is missing.
        concurrency: requests under way at once.
        temperature: of sampling; 0 is the likeliest answer.
        max_tokens: of an answer.
        extra: further fields of a request, or other values of these; None leaves a field out.
        check: ask every server for its models now; False leaves mistakes to the first batch, sample by sample.

    Raises:
        RewardError: an option is wrong, the variable is not set, or a server does not answer or lacks the model.
    """

    def __init__(
        self,
        *,
        url: str | Sequence[str],
        model: str,
        api_key_env: str | None = None,
        timeout: float = 60.0,
        retries: int = 3,
        backoff: float = 1.0,
        deadline: float = 600.0,
        concurrency: int = 16,
        temperature: float = 0.0,
        max_tokens: int = 1024,
        extra: Mapping[str, Any] | None = None,
        check: bool = True,
    ) -> None:
        self.urls = [_base(address) for address in ([url] if isinstance(url, str) else url)]
        for name, seconds, least in (("timeout", timeout, 1e-3), ("backoff", backoff, 0), ("deadline", deadline, 1e-3)):
            require_number(f"{name} of a chat server, in seconds,", seconds, least)
        for name, count, least in (
            ("retries", retries, 0),
            ("concurrency", concurrency, 1),
            ("max_tokens", max_tokens, 1),
        ):
            require_number(f"{name} of a chat server", count, least, whole=True)
        if not self.urls or not model:
            raise RewardError(f"A chat server needs a url and a model. Got {url!r} and {model!r}.")
        self._key = os.environ.get(api_key_env, "") if api_key_env else ""
        if api_key_env and not self._key:
            raise RewardError(
                f"The environment variable {api_key_env} must hold the chat server's key. It is not set: export it, or "
                "leave api_key_env out."
            )
        self.model, self.timeout, self.retries, self.backoff = model, timeout, retries, backoff
        self.deadline, self.concurrency = deadline, concurrency
        self._fields = {"temperature": temperature, "max_tokens": max_tokens, **(extra or {})}
        self._turn, self._lock = 0, threading.Lock()
        self._client = Client(self.urls[0], self._key or None)
        if check:
            for base in self.urls:
                wait_for(self._check(base))

    def ask_all(self, contents: Sequence[Callable[[], Sequence[Mapping[str, Any]]]], **fields: Any) -> list[Any]:
        """Ask questions at once; the order stays.

        Args:
            contents: of each question a function that makes the content of the user's turn, called when its request
                is sent, so that not all images are encoded in memory at once.
            **fields: of every request, over those of the constructor.

        Returns:
            For each a `Reply`, or an `AnswerError`.
        """
        if not contents:
            return []
        with self._lock:
            first, self._turn = self._turn, self._turn + len(contents)
        batch = _Batch(self.deadline, time.monotonic() + self.deadline)

        async def ask(number: int) -> Reply | AnswerError:
            if batch.over:
                return AnswerError(batch.late(number))
            try:
                data = await asyncio.to_thread(self._request, contents[number], fields)
                return await self._ask(batch, number, first + number, data)
            except AnswerError as error:
                return error

        answers = wait_for(side_by_side(ask, len(contents), self.concurrency, batch.until))
        return [AnswerError(batch.late(number)) if answer is None else answer for number, answer in enumerate(answers)]

    def _request(self, content: Callable[[], Sequence[Mapping[str, Any]]], fields: Mapping[str, Any]) -> bytes:
        body = {"model": self.model, "messages": [{"role": "user", "content": list(content())}]}
        body |= {name: value for name, value in {**self._fields, **fields}.items() if value is not None}
        return json.dumps(body).encode()

    async def _ask(self, batch: _Batch, number: int, turn: int, data: bytes) -> Reply:
        """Try until there is an answer, or no attempt or no time left."""
        attempts = 1 if batch.dead else self.retries + 1
        for attempt in range(attempts):
            if batch.over:
                raise AnswerError(batch.late(number))
            base = self.urls[(turn + attempt) % len(self.urls)]
            wait, status = self.backoff * 2**attempt, None
            try:
                answer = await self._send("POST", f"{base}/v1/chat/completions", batch.until, data)
            except UnreachableError as error:
                if batch.over:  # it was cut off, which says nothing of the server
                    raise AnswerError(batch.late(number)) from None
                problem = self._clean(f"{base} did not answer: {error}")
            else:
                batch.dead = False
                status = answer.status
                if status == 200:
                    return _reply(answer.body, base)
                problem = self._clean(f"{base} answered {status}{_reason(status, answer.body)}")
                if status not in (408, 429) and status < 500:
                    raise AnswerError(problem)
                wait = max(wait, answer.retry_after)
            batch.problems[number] = problem
            if attempt < attempts - 1:
                wait = min(wait, LONGEST_WAIT)
                if time.monotonic() + wait >= batch.until:
                    raise AnswerError(batch.late(number))
                await asyncio.sleep(wait)
        if status is None:
            batch.dead = True
        raise AnswerError(f"{problem}, {attempts} attempt{'s' if attempts > 1 else ''}")

    async def _send(self, method: str, url: str, until: float = math.inf, data: bytes | None = None) -> Answer:
        """Attempt once, within the time-out and before an instant of `time.monotonic`, whatever happens."""
        until = min(until, time.monotonic() + self.timeout)
        headers = {"Content-Type": "application/json"}
        return await self._client.ask(method, url, (self.timeout, self.timeout), until, data, headers, LARGEST_REPLY)

    def _clean(self, text: str) -> str:
        return text.replace(self._key, "***") if self._key else text

    async def _check(self, base: str) -> None:
        advice = "Start it, mend url, or give check=False to find out with the first batch"
        try:
            answer = await self._send("GET", f"{base}/v1/models")
        except UnreachableError as error:
            raise RewardError(
                f"The chat server {base} must answer /v1/models within {self.timeout:g} s. It did not "
                f"({self._clean(str(error))}). {advice}."
            ) from None
        if answer.status != 200:
            problem = self._clean(f"answered {answer.status}{_reason(answer.status, answer.body)}")
            raise RewardError(f"The chat server {base} must answer /v1/models. It {problem}. {advice}.")
        try:
            names = [str(item["id"]) for item in json.loads(answer.body)["data"]]
        except (ValueError, KeyError, TypeError):
            raise RewardError(f"{base} must be an OpenAI-compatible server. Its /v1/models is none's.") from None
        if self.model not in names:
            raise RewardError(f"The chat server {base} has no model {self.model!r}. It has: {', '.join(names[:10])}.")


def image_content(image: Tensor) -> dict[str, Any]:
    """Return a uint8 (3, H, W) image as a part of a user's turn, lossless."""
    buffer = io.BytesIO()
    to_pil(image).save(buffer, format="PNG", compress_level=1)
    data = base64.b64encode(buffer.getvalue()).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def _base(url: str) -> str:
    """Return the address without /v1, of http or https, and without a password, which would show up in messages."""
    parts = urlsplit(str(url))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.username or parts.password:
        shown = f"{parts.scheme}://{parts.hostname or ''}" if parts.username or parts.password else str(url)
        raise RewardError(
            "url of a chat server must be http(s)://host:port without a password or a query; a key comes from the "
            f"environment variable that api_key_env names. Got {shown!r}."
        )
    return str(url).rstrip("/").removesuffix("/v1").rstrip("/")


def _reply(content: bytes, base: str) -> Reply:
    try:
        choice = json.loads(content)["choices"][0]
        text = choice["message"]["content"]
        listed = ((choice.get("logprobs") or {}).get("content") or [{}])[0].get("top_logprobs") or []
        first = [(str(item["token"]), float(item["logprob"])) for item in listed]
    except (ValueError, KeyError, TypeError, IndexError, AttributeError):
        raise AnswerError(
            f"{base} sent no chat completion: {shortened(content[:400].decode(errors='replace'))}"
        ) from None
    if not isinstance(text, str) or not text.strip():
        raise AnswerError(f"{base} sent an answer without text")
    return Reply(text.rpartition("</think>")[2], choice.get("finish_reason") != "length", first)


def _reason(status: int, content: bytes) -> str:
    if 300 <= status < 400:
        return ", a redirect, which is not followed: give the address that it leads to"
    try:
        answer = json.loads(content)
        text = answer["error"]["message"] if isinstance(answer["error"], dict) else answer["error"]
    except (ValueError, KeyError, TypeError):
        text = content[:400].decode(errors="replace")
    return f" {shortened(str(text))}" if text else ""
