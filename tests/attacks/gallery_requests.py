"""Mutated requests to a gallery: pages and their parameters, pictures, votes, and bytes that are nearly HTTP."""

from __future__ import annotations

import copy
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote, urlencode

import psutil
import requests
import yaml

from tests.attacks import configurations, mutate
from tests.attacks.http_requests import Server, answer_of, head, raw
from tests.attacks.trial import Send, command, isolated, warm

SECRET = "what nobody outside may read"
PARAMETERS = (
    "run", "state", "tree", "page", "x", "panel", "reward", "sort", "prompt", "columns", "a", "b",
    "voter", "session", "results", "lower", "size", "still", "node", "step", "colour", "v",
)  # fmt: skip
RIGHT = (
    "run",
    "run@eval-1",
    "run@eval-0",
    "0",
    "1",
    "iteration",
    "seconds",
    "value",
    "change",
    "shapes",
    "order",
    "red",
)
PLACES = (
    "../secret.txt", "../../secret.txt", "..%2fsecret.txt", "%2e%2e/secret.txt", "samples/../../secret.txt",
    "samples/..%5c..%5csecret.txt", "//etc/passwd", "%2fetc%2fpasswd", "config.yaml", "samples.sqlite", "samples/",
    "samples/%00.webp", "samples/" + "a/" * 500, "samples/eval-000000/link.webp", ".lock",
    "checkpoints/step-000001/state.json",
)  # fmt: skip
Problem = tuple[str, str] | None

_running: list[Server] = []


def _train(send: Send) -> None:
    send(("code", command(["train", "config.yaml"])))


@contextmanager
def prepared(place: Path) -> Iterator[None]:
    """Train a run of one iteration, and show it."""
    warm()
    folder = place / "shown"
    folder.mkdir()
    data = copy.deepcopy(configurations.base("tiny-sd3/diffrl.yaml"))
    (folder / "config.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    found = isolated(_train, folder, seconds=600)
    if found.last("code") != 0:
        raise RuntimeError(f"The run that is to be shown could not be made:\n{found.output[-3000:]}")
    (folder / "runs/secret.txt").write_text(SECRET, encoding="utf-8")
    (folder / "secret.txt").write_text(SECRET, encoding="utf-8")
    (folder / "runs/run/samples/eval-000000/link.webp").symlink_to(folder / "secret.txt")
    log = folder / "gallery.log"
    words = ["gallery", "runs/run", "--port", "0", "--no-browser", "--votes", "votes.jsonl"]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "diffrl.cli", *words], stdout=sink, stderr=sink, cwd=folder
        )
    try:
        end = time.monotonic() + 120
        while not (found_url := re.search(r"at (http://\S+)/", log.read_text(encoding="utf-8"))):
            if process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"The gallery did not start:\n{log.read_text(encoding='utf-8')}")
            time.sleep(0.05)
        server = Server(found_url[1], psutil.Process(process.pid), log)
        for page in pages():
            answer_of(server, "GET", f"/{page}?run=run")
        server.warm = server.memory()
        _running.append(server)
        yield
        _running.pop()
    finally:
        process.terminate()
        process.wait(30)


def server() -> Server:
    """The running one."""
    return _running[-1]


def pages() -> list[str]:
    """The names of all pages."""
    from diffrl.gallery.site import PAGES

    return list(PAGES)


def still_good(server: Server) -> Problem:
    """The first page must still be there."""
    answer = requests.get(f"{server.url}/", timeout=60)
    return None if answer.ok and "run" in answer.text else ("answer", f"the first page: {answer.status_code}")


def send(rng: random.Random, server: Server) -> tuple[str, Problem]:
    """Send one; what it was, and what is wrong with its answer."""
    kind = rng.choice([page, page, page, media, media, vote, vote, broken_line])
    return kind(rng, server)


def judged(server: Server, path: str, method: str = "GET", **options: object) -> Problem:
    """Send a request, and say what is wrong with its answer."""
    answer = answer_of(server, method, path, **options)
    if isinstance(answer, str):
        return None
    if answer.status_code >= 500:
        return "answer", f"{answer.status_code}: {answer.text[:1500]}"
    if SECRET.encode() in answer.content:
        return "answer", f"{answer.status_code}: it shows a file outside of the run"
    if len(answer.content) > 20_000_000:
        return "flood", f"{len(answer.content)} bytes"
    return None


def value(rng: random.Random) -> str:
    """Of a parameter."""
    chosen = rng.choice((RIGHT, RIGHT, mutate.TEXTS, mutate.FLOATS, mutate.INTEGERS, PLACES))
    return str(rng.choice(chosen))[:3000]


def page(rng: random.Random, server: Server) -> tuple[str, Problem]:
    """A page with parameters that it may not know."""
    given = [(rng.choice(PARAMETERS), value(rng)) for _ in range(rng.choice((0, 1, 1, 2, 3, 8)))]
    if rng.random() < 0.6:
        given.insert(0, ("run", "run"))
    name = rng.choice(pages()) if rng.random() < 0.9 else quote(value(rng), safe="/%.", errors="replace")
    path = f"/{name}?{urlencode(given, errors='replace')}"
    return f"GET {mutate.brief(path, 300)}", judged(server, path)


def media(rng: random.Random, server: Server) -> tuple[str, Problem]:
    """A picture, or a file that is none, with headers of browsers and others."""
    folder = Path(server.process.cwd()) / "runs/run"
    real = [str(path.relative_to(folder)) for path in folder.glob("samples/*/*.webp")]
    file = rng.choice((rng.choice(sorted(real)), rng.choice(PLACES), quote(value(rng), safe="/%", errors="replace")))
    size = rng.choice(("", "?size=256", "?size=64&still=1", "?still=1", f"?size={quote(value(rng), errors='replace')}"))
    ranges, marks = ("bytes=0-", "bytes=9-1", "bytes=-1", "x", "bytes=" + "0-1," * 999), ("*", '"', '"a"' * 999)
    headers = rng.choice(({}, {"Range": rng.choice(ranges)}, {"If-None-Match": rng.choice(marks)}))
    path = f"/{rng.choice(('media/run', 'media/' + quote(value(rng), errors='replace'), 'static'))}/{file}{size}"
    return f"GET {mutate.brief(path, 300)} {mutate.brief(headers)}", judged(server, path, headers=headers)


def vote(rng: random.Random, server: Server) -> tuple[str, Problem]:
    """A vote with fields that are changed; half of them begin a ballot of their own."""
    fields = {
        "session": value(rng),
        "key": value(rng),
        "pair": value(rng),
        "choice": rng.choice(("left", "undo", value(rng))),
    }
    if rng.random() < 0.5:
        answer = requests.get(f"{server.url}/vote?run=run&voter={quote(value(rng), errors='replace')}", timeout=60)
        found = {
            name: re.search(rf'name="{name}"[^>]*value="([^"]+)"', answer.text) for name in ("session", "key", "pair")
        }
        for name, match in found.items():
            if match and rng.random() < 0.8:
                fields[name] = match[1]
    pairs = list(fields.items()) * rng.choice((1, 1, 1, 5))
    body = urlencode(pairs, errors="replace").encode()
    if rng.random() < 0.3:
        body, _ = mutate.damaged(rng, body)
    origin = value(rng).encode("ascii", "replace").decode().replace("\n", " ")
    headers = rng.choice(
        (
            {},
            {"Origin": origin},
            {"Sec-Fetch-Site": "cross-site"},
            {"Accept": "application/json"},
            {"Content-Length": "5"},
        )
    )
    return f"vote {mutate.brief(body, 200)} {headers}", judged(server, "/vote", "POST", data=body, headers=headers)


def broken_line(rng: random.Random, server: Server) -> tuple[str, Problem]:
    """Bytes that are nearly HTTP."""
    hosts = ("127.0.0.1", "localhost", "evil.example", "127.0.0.1:99999", "[::1", "a" * 5000, "\u2028", "")
    method, path = rng.choice(("GET", "POST", "HEAD", "PUT", "X")), f"/{rng.choice(pages())}?run={rng.choice(RIGHT)}"
    data, what = (
        head(method, path, {"Host": rng.choice(hosts), "Content-Length": rng.choice(("0", "5", "-1", "x"))}),
        "",
    )
    if rng.random() < 0.6:
        data, what = mutate.damaged(rng, data)
    found = raw(server, data)
    bad = re.match(rb"HTTP/1.1 5\d\d", found)
    return f"line {mutate.brief(data, 200)} {what}", ("answer", found[:500].decode("latin-1")) if bad else None
