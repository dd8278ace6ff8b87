"""Mutated requests to a reward server: bodies, headers, sizes, tokens, and connections that end halfway."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import requests
import torch

from reward_models import load_reward
from reward_models.serving.wire import PROTOCOL, PROTOCOL_HEADER
from tests.attacks import mutate
from tests.attacks.bad_reward_requests import BAD, MEDIA, TOKEN, body_of, head, with_text
from tests.attacks.http_requests import Server, answer_of, connection, raw, refused
from tests.attacks.load_rewards import Client, good_batches, server_process

PATH = "/v1/score/shapes"
HELD = 12
"""Connections that are left half-sent at once; each of a good token."""
Problem = tuple[str, str] | None

_running: list[tuple[Server, Client]] = []


@contextmanager
def prepared() -> Iterator[None]:
    """Start a server with small limits, and let it take the memory that serving takes at all."""
    batches = good_batches()
    expected = [load_reward("shapes")(batch) for batch in batches]
    with ExitStack() as stack:
        url, process, log = stack.enter_context(server_process())
        client = Client(url, batches, expected)
        client.run(["good"] * 60 + list(BAD) * 2, 2)
        server = Server(url, process, log)
        server.warm = server.memory()
        _running.append((server, client))
        yield
        _running.pop()


def server() -> Server:
    """The running one."""
    return _running[-1][0]


def still_good(server: Server) -> Problem:
    """A good request must be answered with the right scores, bit for bit."""
    client = _running[-1][1]
    with requests.Session() as session:
        problem = client.good(session, random.randrange(1000))
    return ("answer", f"a good request afterwards: {problem}") if problem else None


def send(rng: random.Random, server: Server) -> tuple[str, Problem]:
    """Send one; what it was, and what is wrong with its answer."""
    kind = rng.choice([known, side, side, tensors, tensors, heads, heads, broken_line, held, bomb])
    return kind(rng, server)


def judged(server: Server, body: Any, path: str = PATH, method: str = "POST", **headers: str) -> Problem:
    """Send a request, and say what is wrong with its answer."""
    headers = {PROTOCOL_HEADER: str(PROTOCOL), "Authorization": f"Bearer {TOKEN}", **headers}
    answer = answer_of(server, method, path, data=body, headers=headers)
    if isinstance(answer, str):
        return None  # it could not be sent, or was cut off: seen in the server's log and by the next good request
    if not refused(answer.status_code):
        return "answer", f"{answer.status_code}: {answer.text[:500]}"
    if answer.status_code == 200:
        return None if "raw" in answer.text or method != "POST" or path != PATH else ("answer", answer.text[:500])
    if method == "HEAD":
        return None
    try:
        right = list(answer.json()) == ["error"] and len(answer.text) < 2000
    except ValueError:
        right = answer.status_code == 400 and "Invalid HTTP request" in answer.text  # it never reached the service
    return None if right else ("no sentence", f"{answer.status_code}: {answer.text[:500]}")


def known(rng: random.Random, server: Server) -> tuple[str, Problem]:
    """One of the load test's, whose status is known."""
    name = rng.choice(list(BAD))
    with requests.Session() as session:
        problem = BAD[name](_running[-1][1], session)
    return name, ("answer", problem) if problem else None


def side(rng: random.Random, server: Server) -> tuple[str, Problem]:
    """What a request says beside its media in another shape."""
    data: dict[str, Any] = {"prompts": ["a red circle"] * 2, "metadata": [{"a": 1}, {"b": [1, 2]}], "groups": [0, 1]}
    data["fps"] = None
    done = rng.choice((mutate.hostile_value, mutate.removed, mutate.renamed, mutate.swapped))(rng, data)
    if rng.random() < 0.3:
        name = rng.choice(("prompts", "metadata", "groups"))
        count = rng.choice((3, 300, 20_000))
        data[name] = [rng.choice(("", 1, None, [], {}, "a", data.get("prompts", 0)))] * count
        done = f"{name} of {count}"
    return f"side: {done}", judged(server, with_text(json.dumps(data)))


def tensors(rng: random.Random, server: Server) -> tuple[str, Problem]:
    """A body whose header lies, or with bytes damaged."""
    body = body_of()
    length = int.from_bytes(body[:8], "little")
    header, done = json.loads(body[8 : 8 + length]), "bytes"
    if rng.random() < 0.6:
        done = rng.choice((mutate.hostile_value, mutate.removed, mutate.renamed, mutate.hostile_value))(rng, header)
        text = json.dumps(header).encode("utf-8", "surrogatepass")
        body = len(text).to_bytes(8, "little") + text + body[8 + length :]
    if done == "bytes" or rng.random() < 0.3:
        body, what = mutate.damaged(rng, body)
        done = f"{done}, {what}"
    return f"safetensors: {done}", judged(server, body)


def heads(rng: random.Random, server: Server) -> tuple[str, Problem]:
    """A good body under a strange head."""
    text = rng.choice(mutate.TEXTS).replace("\n", " ").replace("\0", "").encode("ascii", "replace").decode()[:60_000]
    kinds: dict[str, dict[str, Any]] = {
        "protocol": {PROTOCOL_HEADER: text},
        "token": {"Authorization": f"Bearer {text}"},
        "scheme": {"Authorization": text},
        "encoding": {"Content-Encoding": rng.choice(("gzip", "deflate", text))},
        "method": {"method": rng.choice(("GET", "PUT", "HEAD", "OPTIONS", "DELETE", "TRACE", "X"))},
        "path": {"path": rng.choice((f"/{text}", f"{PATH}/../..", "/v1/score/%00", "/v1/score/", "//", "/v1/score/a%2f",
                                     f"/v1/score/{'a' * 5000}", "/health?x=" + "a" * 5000, "*"))},
        "many headers": {f"X-{n}": "x" for n in range(rng.choice((50, 500)))},
        "expectation": {"Expect": "100-continue"},
        "host": {"Host": text},
    }  # fmt: skip
    name = rng.choice(list(kinds))
    options = kinds[name]
    if "path" in options:
        options["path"] = options["path"].replace(" ", "%20")
    body = gzip.compress(body_of()) if name == "encoding" else body_of()
    return f"{name} {mutate.brief(options)}", judged(server, body, **options)


def broken_line(rng: random.Random, server: Server) -> tuple[str, Problem]:
    """Bytes that are nearly HTTP."""
    body = body_of()
    length = rng.choice((len(body), len(body) * 2, 0, 10**30, -1))
    chunked = {"Transfer-Encoding": "chunked"} if rng.random() < 0.3 else {}
    data = head(length, **chunked) + body
    if rng.random() < 0.7:
        data, what = mutate.damaged(rng, data)
    else:
        what = "as it is"
    found = raw(server, data)
    status = found[9:12]
    bad = status.isdigit() and not refused(int(status))
    return f"line of Content-Length {length}, {what}", ("answer", found[:500].decode("latin-1")) if bad else None


def held(rng: random.Random, server: Server) -> tuple[str, Problem]:
    """Half-sent bodies of a good token that stay open, and a good request beside them."""
    length = rng.choice((10_000, 900_000))
    with ExitStack() as stack:
        for _ in range(HELD):
            line = stack.enter_context(connection(server.url))
            line.sendall(head(length) + b"{" * (length // 2))
        return f"{HELD} half-sent bodies of {length} bytes", still_good(server)


def bomb(rng: random.Random, server: Server) -> tuple[str, Problem]:
    """Little that becomes much."""
    made = {
        "nested lists": lambda: with_text("[" * 900_000),
        "flat lists": lambda: with_text('{"metadata": [' + "[]," * 300_000 + "[]]}"),
        "empty objects": lambda: with_text('{"metadata": [' + "{}," * 300_000 + "{}]}"),
        "numbers": lambda: with_text('{"groups": [' + "1," * 400_000 + "1]}"),
        "digits": lambda: with_text('{"fps": ' + "9" * 900_000 + "}"),
        "many empty samples": lambda: body_of(torch.zeros(200, 3, 1, 1, dtype=torch.uint8), metadata=[{}] * 200),
        "a flat image": lambda: body_of(MEDIA.flatten()[: 3 * 5000].reshape(1, 3, 1, 5000)),
    }
    name = rng.choice(list(made))
    return f"bomb: {name}", judged(server, made[name]())
