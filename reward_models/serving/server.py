"""The scoring service: any scorers behind HTTP, for training on other machines or in other environments.

    from reward_models import load_reward
    from reward_models.serving.server import serve
    serve({"shapes": load_reward("shapes")}, port=8123)

docs/reward-server.md has the endpoints and what they refuse.
"""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import uvicorn
from fastapi import FastAPI
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from reward_models.base import Scorer
from reward_models.common.errors import RewardError
from reward_models.common.sections import first_problem
from reward_models.serving.connections import server_config
from reward_models.serving.endpoints import Guarded, Service
from reward_models.serving.transport import is_loopback
from reward_models.serving.wire import TOKEN_VARIABLE, Limits

log = logging.getLogger(__name__)
LISTENING = ("host", "port", "token", "token_file", "allow_anonymous", "grace_s")
"""Options of where to listen, to whom, and how to end; `serve` takes limits beside them."""


def make_app(rewards: Mapping[str, Scorer], *, token: str | None = None, **limits: float) -> FastAPI:
    """Return the service as an ASGI application, for a server of your own.

    Args:
        rewards: scorers by the name that clients ask for.
        token: what clients must show as `Authorization: Bearer TOKEN`; None: nothing.
        **limits: fields of `reward_models.serving.wire.Limits`.

    Raises:
        RewardError: a name that is no part of an address, a wrong limit or token.
    """
    wrong = [name for name in rewards if not re.fullmatch(r"[A-Za-z0-9_.-]+", name)]
    if wrong or not rewards:
        raise RewardError(
            f"A served reward's name has letters, digits, '_', '.' and '-'. Got {wrong or 'no rewards'}. Name it anew."
        )
    service = Service(rewards, token, _limits(limits))

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        service.close()

    app = guarded_app(service, "There are GET /health, GET /v1/rewards and POST /v1/score/NAME.", lifespan)
    app.add_route("/health", service.endpoint(service.health, public=True), methods=["GET"])
    app.add_route("/v1/rewards", service.endpoint(service.rewards), methods=["GET"])
    app.add_route("/v1/score/{name}", service.endpoint(service.score), methods=["POST"])
    return app


def guarded_app(service: Guarded, rule: str, lifespan: Any = None) -> FastAPI:
    """Return an application without routes, which answers in sentences where it has none.

    Args:
        service: answers.
        rule: the addresses that there are.
        lifespan: as for FastAPI.

    Raises:
        RewardError: a wrong token.
    """
    if service.token is not None and not re.fullmatch(r"[!-~]{8,}", service.token):
        raise RewardError("A token has 8 or more ASCII characters and no spaces. Make one: openssl rand -hex 24.")
    app = FastAPI(title=f"diffrl {service.name}", openapi_url=None, redirect_slashes=False, lifespan=lifespan)

    async def plain(request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        return service.refuse(status, f"{rule} Got {request.method} {request.url.path[:80]}.")

    app.add_exception_handler(HTTPException, plain)
    app.state.service = service
    return app


def serve(
    rewards: Mapping[str, Scorer],
    *,
    host: str = "127.0.0.1",
    port: int = 8123,
    token: str | None = None,
    token_file: str | Path | None = None,
    allow_anonymous: bool = False,
    ready: Callable[[str], None] | None = None,
    grace_s: float = 30.0,
    **limits: float,
) -> None:
    """Serve scorers until SIGTERM or SIGINT; requests under way are then finished, new ones refused.

    Args:
        rewards: scorers by the name that clients ask for.
        host: address to listen on; the loopback by default.
        port: 0 takes a free one.
        token: what clients must show as `Authorization: Bearer TOKEN`; default: what is in `token_file`, or in the
            environment variable DIFFRL_REWARD_TOKEN, or none.
        token_file: a file that holds the token.
        allow_anonymous: serve without a token on an address that others can reach.
        ready: called with the service's address once it listens.
        grace_s: seconds that requests under way have to finish at the end.
        **limits: fields of `reward_models.serving.wire.Limits`: max_body_mb=256, max_batch=16, queue_size=64, ...

    Raises:
        RewardError: the port is taken, an open address without a token, a wrong limit.
    """
    serve_app(
        lambda token: make_app(rewards, token=token, **limits),
        ready,
        host=host,
        port=port,
        token=token,
        token_file=token_file,
        allow_anonymous=allow_anonymous,
        grace_s=grace_s,
    )


def serve_app(
    make: Callable[[str | None], FastAPI], ready: Callable[[str], None] | None = None, **options: Any
) -> None:
    """Serve an application until SIGTERM or SIGINT; requests under way are then finished, new ones refused.

    Args:
        make: returns the application, whose clients must show a token, or None.
        ready: called with the service's address once it listens.
        **options: those of `serve` on host, port, token and end; `variable`, the environment's with the token.

    Raises:
        RewardError: the port is taken, an open address without a token.
    """
    server, listener = _server(make, **options)
    with listener, _signals_end_only_the_server():
        if ready is not None:
            ready(address_of(listener))
        server.run(sockets=[listener])


@contextmanager
def background(rewards: Mapping[str, Scorer], **options: Any) -> Iterator[str]:
    """Serve from a thread while the block runs, on a free port; for notebooks and tests.

    Args:
        rewards: as for `serve`.
        **options: those of `serve`, without `ready`.

    Yields:
        The service's address.
    """
    limits = {name: options.pop(name) for name in list(options) if name not in LISTENING}
    with background_app(lambda token: make_app(rewards, token=token, **limits), **options) as address:
        yield address


@contextmanager
def background_app(make: Callable[[str | None], FastAPI], **options: Any) -> Iterator[str]:
    """Serve an application from a thread while the block runs, on a free port.

    Args:
        make: as for `serve_app`.
        **options: likewise.

    Yields:
        The service's address.
    """
    server, listener = _server(make, **options)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="diffrl server", daemon=True)
    thread.start()
    while not server.started and thread.is_alive():
        time.sleep(0.005)
    try:
        yield address_of(listener)
    finally:
        server.should_exit = True
        thread.join()
        listener.close()


def address_of(listener: socket.socket) -> str:
    """Return the address of a listening socket, for clients."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def find_token(
    token: str | None = None, token_file: str | Path | None = None, variable: str = TOKEN_VARIABLE
) -> str | None:
    """Return the token, or the one in the file, or in the environment variable, or None.

    Raises:
        RewardError: the file cannot be read, or what should hold a token is empty.
    """
    if token is None and token_file is not None:
        try:
            token = Path(token_file).expanduser().read_text().strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = getattr(error, "strerror", None) or error
            raise RewardError(f"The token file {token_file} cannot be read: {reason}. Check the path.") from error
    elif token is None:
        token = os.environ.get(variable)
    if token == "":
        raise RewardError(f"A token must not be empty. Give one in {variable} or a token file, or unset it.")
    return token


def _server(
    make: Callable[[str | None], FastAPI],
    *,
    host: str = "127.0.0.1",
    port: int = 0,
    token: str | None = None,
    token_file: str | Path | None = None,
    allow_anonymous: bool = False,
    grace_s: float = 5.0,
    variable: str = TOKEN_VARIABLE,
) -> tuple[uvicorn.Server, socket.socket]:
    """Return a server that is ready to run, and the socket it will listen on."""
    token = find_token(token, token_file, variable)
    if token is None and not allow_anonymous and not is_loopback(host):
        raise RewardError(
            f"A server that others can reach needs a token. Got host={host!r} and none. Set {variable}, "
            "listen on 127.0.0.1, or allow it (--allow-anonymous)."
        )
    app = make(token)  # before anybody can connect, and wait
    listener = _listen(host, port)
    config = server_config(
        app,
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=60,
        timeout_graceful_shutdown=max(1, round(grace_s)),
    )
    return uvicorn.Server(config), listener


def _limits(values: Mapping[str, float]) -> Limits:
    try:
        return Limits.model_validate(values)
    except ValidationError as error:
        raise RewardError(f"A limit of the reward server: {first_problem(error, Limits)} Change it.") from None


def _listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; with its protocol unnamed asyncio would leave Nagle's delay of 40 ms."""
    listener = None
    try:
        addresses = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        family, kind, _, _, address = addresses[0]
        listener = socket.socket(family, kind, socket.IPPROTO_TCP)
        if os.name == "posix":  # elsewhere it would let two servers share a port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(512)
        return listener
    except (OSError, OverflowError) as error:
        if listener is not None:
            listener.close()
        raise RewardError(
            f"The server cannot listen on {host}:{port}: {error}. Choose another port, or 0 for a free one."
        ) from error


@contextmanager
def _signals_end_only_the_server() -> Iterator[None]:
    """Absorb the signal that the server raises once more, which would kill the process after a clean end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    old = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in old.items():
            signal.signal(number, handler)
