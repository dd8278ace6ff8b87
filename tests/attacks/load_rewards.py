"""Load test of the reward server: good requests among broken, oversized, wrong and dropped ones.

    python -m tests.attacks.load_rewards                       # 1,000 requests from 8 clients
    python -m tests.attacks.load_rewards --requests 10000 --clients 16

A server with the shapes scorer runs in a process of its own. Every good request's scores must be those of the same
scorer here, bit for bit; every bad request must be refused with its status; the server's log must hold no traceback,
and its memory must not grow. Prints the figures; the exit status is 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import requests
import torch

from reward_models import RewardBatch, RewardOutput, load_reward
from reward_models.self_test import drawing, noise
from reward_models.serving.wire import PROTOCOL, PROTOCOL_HEADER, decode_output, encode_request
from tests.attacks.bad_reward_requests import BAD, TOKEN
from tests.attacks.http_requests import connection

LIMITS: dict[str, Any] = {"max_body_mb": 1.0, "max_pixels": 2**18, "max_held_mb": 64.0, "request_timeout": 30.0}
"""Of the server under test: small, so that what is too much is made quickly."""
GOOD_SHARE = 0.5
ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    """Read the command line, run, print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--requests", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--server", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.server:
        serve_shapes()
        return
    figures = load_test(options.requests, options.clients, options.seed)
    for name, value in figures.items():
        print(f"{name:>20}: {value}")
    sys.exit(1 if figures["problems"] else 0)


def serve_shapes() -> None:
    """Be the server: print the address, then serve until SIGTERM."""
    from reward_models.serving.server import serve

    torch.set_num_threads(1)
    serve({"shapes": load_reward("shapes")}, port=0, token=TOKEN, ready=lambda url: print(url, flush=True), **LIMITS)


@contextlib.contextmanager
def server_process() -> Iterator[tuple[str, psutil.Process, Path]]:
    """A server in a process of its own: its address, the process, its log."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "server.log"
        with log.open("wb") as sink:
            command = [sys.executable, "-m", "tests.attacks.load_rewards", "--server"]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=sink, text=True, env=environment, cwd=ROOT
            )
        assert process.stdout is not None
        url = process.stdout.readline().strip()
        try:
            if not url:
                raise RuntimeError(f"The server did not start:\n{log.read_text()}")
            yield url, psutil.Process(process.pid), log
        finally:
            process.terminate()
            process.wait(30)
            process.stdout.close()


def load_test(count: int, clients: int, seed: int = 0) -> dict[str, Any]:
    """Run the test.

    Args:
        count: requests, without those of the warm-up.
        clients: threads that send them.
        seed: of what is sent in which order.

    Returns:
        The figures; `problems` is a list of sentences, empty if all is well.
    """
    random_order = random.Random(seed)
    kinds = ["good" if random_order.random() < GOOD_SHARE else random_order.choice(list(BAD)) for _ in range(count)]
    batches = good_batches()
    scorer = load_reward("shapes")
    expected = [scorer(batch) for batch in batches]
    with server_process() as (url, process, log):
        client = Client(url, batches, expected)
        client.run(["good"] * 100 + list(BAD) * 3, clients)  # the memory that serving takes at all
        settled = rss(process)
        client.forget()
        start = time.monotonic()
        client.run(kinds, clients)
        seconds = time.monotonic() - start
        health = requests.get(f"{url}/health", timeout=10).json()
        ended = rss(process)
        text = log.read_text()
    if "Traceback" in text:
        client.problems.append("There is a traceback in the server's log.")
    if health["under_way"] or health["held_mb"]:
        client.problems.append(f"The server still holds something at the end: {health}.")
    done = client.done
    if done["good"] != kinds.count("good"):
        client.problems.append(f"{kinds.count('good') - done['good']} good requests were lost.")
    return {
        "requests": count,
        "clients": clients,
        "good and right": done["good"],
        "refused as they must": sum(number for kind, number in done.items() if kind != "good" and "drop" not in kind),
        "dropped on purpose": sum(number for kind, number in done.items() if "drop" in kind),
        "asked again (503)": client.busy,
        "seconds": round(seconds, 1),
        "requests a second": round(count / seconds, 1),
        "memory before, MB": round(settled, 1),
        "memory after, MB": round(ended, 1),
        "log lines": len(text.splitlines()),
        "tracebacks": text.count("Traceback"),
        "problems": client.problems,
    }


def rss(process: psutil.Process) -> float:
    """Memory of a process in 10^6 bytes."""
    return float(process.memory_info().rss) / 1e6


def good_batches() -> list[RewardBatch]:
    """Batches of several sizes and lengths, right, wrong and senseless pictures among them."""
    things = [("red", "circle"), ("blue", "square"), ("green", "triangle"), ("black", "circle")]
    made = []
    for side in (37, 64, 96):
        for length in (1, 2, 3):
            pictures = [drawing(*things[(side + row) % 4], side=side) for row in range(length - 1)]
            pictures.append(noise(side, seed=side))
            prompts = [f"a {color} {shape}" for color, shape in things[:length]]
            made.append(
                RewardBatch(
                    torch.stack(pictures), [*prompts[:-1], "no prompt of shapes" if side == 64 else prompts[-1]]
                )
            )
    return made


class Client:
    """Sends requests from several threads and judges the answers."""

    def __init__(self, url: str, batches: list[RewardBatch], expected: list[RewardOutput]) -> None:
        self.url, self.batches, self.expected = url, batches, expected
        self.problems: list[str] = []
        self.lock = threading.Lock()
        self.forget()

    def forget(self) -> None:
        """Start counting anew; problems stay."""
        self.done: Counter[str] = Counter()
        self.busy = 0

    def run(self, kinds: list[str], clients: int) -> None:
        """Send one request of each kind, in this order, from `clients` threads."""
        left = list(enumerate(kinds))[::-1]

        def work() -> None:
            with requests.Session() as session:
                while True:
                    with self.lock:
                        if not left:
                            return
                        number, kind = left.pop()
                    try:
                        problem = self.good(session, number) if kind == "good" else BAD[kind](self, session)
                    except Exception as error:  # whatever happens is a finding, and the next request must be sent
                        problem = f"{type(error).__name__}: {error}"
                    with self.lock:
                        if problem:
                            self.problems.append(f"{kind}: {problem}")
                        else:
                            self.done[kind] += 1

        threads = [threading.Thread(target=work) for _ in range(clients)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def post(
        self,
        session: requests.Session,
        body: Any,
        name: str = "shapes",
        token: str = TOKEN,
        protocol: int = PROTOCOL,
    ) -> Any:
        """Send a request."""
        headers = {PROTOCOL_HEADER: str(protocol), "Authorization": f"Bearer {token}"}
        return session.post(f"{self.url}/v1/score/{name}", data=body, headers=headers, timeout=60)

    def good(self, session: requests.Session, number: int) -> str | None:
        """A good request; what is wrong with its answer."""
        index = number % len(self.batches)
        body = encode_request(self.batches[index])
        while (answer := self.post(session, body)).status_code == 503:
            with self.lock:
                self.busy += 1
            time.sleep(float(answer.headers["Retry-After"]))
        if answer.status_code != 200:
            return f"answered {answer.status_code} {answer.text[:200]}"
        output, _ = decode_output(answer.content, len(self.batches[index]))
        right = self.expected[index]
        pairs = [(output.raw, right.raw), *((output.parts[name], right.parts[name]) for name in right.parts)]
        if not all(torch.equal(bits(mine), bits(theirs)) for mine, theirs in pairs):
            return f"other scores than here: {output.raw.tolist()} for {right.raw.tolist()}"
        if output.ok.tolist() != right.ok.tolist() or list(output.errors) != list(right.errors):
            return f"other errors than here: {output.errors} for {right.errors}"
        return None

    def refused(self, answer: requests.Response, status: int) -> str | None:
        """What is wrong with an answer that must be a refusal."""
        if answer.status_code == 503 and status != 503:
            return None  # busy: refused before it was looked at
        if answer.status_code != status:
            return f"answered {answer.status_code} instead of {status}: {answer.text[:200]}"
        if list(answer.json()) != ["error"] or "Traceback" in answer.text:
            return f"the answer is no sentence: {answer.text[:200]}"
        return None

    def raw(self, data: bytes, wait: float = 0.0) -> None:
        """Send bytes and drop the connection."""
        with connection(self.url) as line:
            line.sendall(data)
            time.sleep(wait)


def bits(values: torch.Tensor) -> torch.Tensor:
    """Floats as integers, all NaN alike."""
    return torch.where(values.isnan(), torch.full_like(values, math.nan), values).view(torch.int32)


if __name__ == "__main__":
    main()
