"""HTTP for clients that must not hang: requests run on an event loop, where whatever they wait for can be cancelled.

A read time-out bounds the silence between two bytes, not the answer: a server that sends one byte a second is never
silent. So a request as a whole has an end, at which it is cancelled, whatever it is doing. The loop has a thread of its
own, because callers are ordinary functions, in any thread, also in a notebook that runs a loop itself.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import ipaddress
import os
import re
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from functools import cache
from http.cookiejar import CookieJar, DefaultCookiePolicy
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx

from reward_models.common.errors import RewardError

T = TypeVar("T")
POLL = 0.5
"""Seconds between two looks for signals: the system may give one to a thread that does not wake the one that waits."""
GRACE = 0.1
"""Seconds after a deadline in which requests may still say what they were waiting for."""


class UnreachableError(Exception):
    """No whole answer came; the message says what happened instead."""


@dataclass(frozen=True)
class Answer:
    """A server's answer."""

    status: int  # of HTTP
    headers: Mapping[str, str]  # case does not matter
    body: bytes  # at most as many bytes as asked for

    @property
    def retry_after(self) -> float:
        """Return the seconds that the server asks to wait: a number, or until a date by its own clock; else 0."""
        text = self.headers.get("Retry-After", "").strip()
        if re.fullmatch(r"\d{1,6}(\.\d{1,3})?", text):
            return float(text)
        try:
            until, sent = (parsedate_to_datetime(self.headers.get(name, "")) for name in ("Retry-After", "Date"))
            return max(0.0, (until - sent).total_seconds())
        except (TypeError, ValueError):  # no date, or one of them without a zone
            return 0.0


class Client:
    """Connections to servers of one kind, kept open between requests.

    Args:
        url: any address of the servers; on the loopback no proxy is used.
        token: sent as `Authorization: Bearer TOKEN`, or None.

    Raises:
        RewardError: a proxy or a certificate that the environment names cannot be used.
    """

    def __init__(self, url: str, token: str | None) -> None:
        headers = {"Accept-Encoding": "identity"}  # no body grows when it is unpacked
        if token is not None:
            headers["Authorization"] = f"Bearer {token}"
        try:
            self._http = httpx.AsyncClient(
                headers=headers,
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),  # none is kept
                trust_env=not is_loopback(urlsplit(url).hostname or ""),
                limits=httpx.Limits(max_connections=None),
            )
        except (ImportError, OSError, ValueError) as error:
            raise RewardError(
                "The proxy and the certificates that the environment names must be usable. Got: "
                f"{str(error).rstrip('.')}. Mend HTTP_PROXY, HTTPS_PROXY, ALL_PROXY, SSL_CERT_FILE or SSL_CERT_DIR."
            ) from error
        weakref.finalize(self, _close, self._http).atexit = False

    async def ask(
        self,
        method: str,
        url: str,
        timeout: tuple[float, float],
        until: float,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
        most: int = 1 << 24,
    ) -> Answer:
        """Send a request and read the whole answer.

        Args:
            method: GET or POST.
            url: its address.
            timeout: seconds to connect, and from there to the end of the answer.
            until: instant of `time.monotonic` at which it is over anyway.
            body: of the request.
            headers: of the request.
            most: bytes of the answer; more is no answer.

        Raises:
            UnreachableError: no connection, no answer in time, half an answer, or too much of it.
        """
        start, received = time.monotonic(), bytearray()
        patience = httpx.Timeout(timeout[1], connect=timeout[0], pool=None)
        try:
            async with (
                asyncio.timeout_at(min(until, start + sum(timeout))),
                self._http.stream(method, url, content=body, headers=headers, timeout=patience) as response,
            ):
                async for piece in response.aiter_raw():
                    received += piece
                    if len(received) > most:
                        raise UnreachableError(f"its answer is longer than {most} bytes")
            return Answer(response.status_code, response.headers, bytes(received))
        except (TimeoutError, httpx.ReadTimeout, httpx.WriteTimeout):
            raise UnreachableError(f"no whole answer within {time.monotonic() - start:.1f} s") from None
        except httpx.ConnectTimeout:
            raise UnreachableError(f"no connection within {timeout[0]:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
            raise UnreachableError(_reason(error)) from error


def is_loopback(host: str) -> bool:
    """Return whether a host, by name or number, is this machine and nobody else reaches it there."""
    try:
        return host == "localhost" or ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def require_number(name: str, value: Any, least: float, whole: bool = False) -> None:
    """Refuse an option of a client that is no number, or too small or too large for a clock.

    Raises:
        RewardError: says what it must be.
    """
    kinds = int if whole else (int, float)
    if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= threading.TIMEOUT_MAX:
        kind = "a whole number" if whole else "a number"
        raise RewardError(f"{name} must be {kind} of at least {least:g}. Got {value!r}. Change it.")


def wait_for(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine of clients to its end; what interrupts the waiting, such as Ctrl-C, cancels it.

    Raises:
        BaseException: whatever it raises, or whatever interrupts.
    """
    return result_of(begin(work))


def begin(work: Coroutine[Any, Any, T]) -> concurrent.futures.Future[T]:
    """Begin a coroutine of clients, and go on at once."""
    return asyncio.run_coroutine_threadsafe(work, _loop())


def result_of(future: concurrent.futures.Future[T]) -> T:
    """Wait for what was begun; what interrupts the waiting, such as Ctrl-C, cancels it.

    Raises:
        BaseException: whatever it raises, or whatever interrupts.
    """
    try:
        while not concurrent.futures.wait([future], POLL).done:
            pass
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def side_by_side(work: Callable[[int], Awaitable[T]], count: int, at_once: int, until: float) -> list[T | None]:
    """Return what work(0), ..., work(count - 1) return, in order.

    Args:
        work: called with numbers in rising order.
        count: of calls.
        at_once: calls under way at one time.
        until: instant of `time.monotonic` at which what is missing is cancelled, and None.

    Raises:
        Exception: the first that a call raises; the others are cancelled.
    """
    results: list[T | None] = [None] * count
    numbers = iter(range(count))

    async def one_after_the_other() -> None:
        for number in numbers:
            results[number] = await work(number)

    tasks = [asyncio.create_task(one_after_the_other()) for _ in range(min(count, at_once))]
    try:
        left = max(until - time.monotonic(), 0.0) + GRACE
        done, _ = await asyncio.wait(tasks, timeout=left, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in done:
        task.result()
    return results


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return the event loop of all clients; its daemon thread holds up neither Ctrl-C nor the program's end."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="reward clients", daemon=True).start()
    return loop


if hasattr(os, "register_at_fork"):  # a forked process has no such thread
    os.register_at_fork(after_in_child=_loop.cache_clear)


def _close(client: httpx.AsyncClient) -> None:
    asyncio.run_coroutine_threadsafe(client.aclose(), _loop())


def _reason(error: BaseException) -> str:
    """Return what happened, in the words of the innermost exception."""
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner.exceptions[0] if isinstance(inner, BaseExceptionGroup) else inner
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno)
    return str(error).split("\n")[0][:160] or type(error).__name__
