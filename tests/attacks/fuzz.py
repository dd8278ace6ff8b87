"""Fuzzer: mutants of what users, clients and broken disks hand to diffrl, made from a seed, tried one by one.

    python -m tests.attacks.fuzz configurations --count 1000 --seed 0  # mutated configurations: check, plan, train
    python -m tests.attacks.fuzz prompts --count 200  # mutated prompt files
    python -m tests.attacks.fuzz requests --count 1000  # mutated requests to a reward server and a gallery
    python -m tests.attacks.fuzz runs --count 200  # damaged run directories, resumed
    python -m tests.attacks.fuzz all --count 20 --workers 2
    python -m tests.attacks.fuzz configurations --replay 0:17  # one mutant again, with everything that it said

Every mutant must do what it should or be refused by a sentence: no traceback, no hang over 60 s, nothing lost, and no
run that trains nothing and exits with 0. Prints counts, and each fault with what repeats it; the exit status is 1 if
there is one. Takes minutes for a thousand; docs/reliability.md has the figures.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

os.environ["OMP_NUM_THREADS"] = "1"  # sums round alike in all processes
os.environ["HF_HUB_OFFLINE"] = "1"  # a mutated name must not be looked up elsewhere
os.environ["WANDB_MODE"] = "offline"

from tests.attacks.findings import Finding, failures, table  # noqa: E402

SUBJECTS = {
    "configurations": "tests.attacks.configurations",
    "prompts": "tests.attacks.prompts",
    "requests": "tests.attacks.http_requests",
    "runs": "tests.attacks.run_directories",
}


class Subject(Protocol):
    """What is attacked: a module with these functions."""

    def prepared(self, place: Path) -> AbstractContextManager[None]:
        """Make in a folder, and start, what all mutants are tried on."""
        ...

    def attempt(self, rng: random.Random, folder: Path) -> tuple[str, str, str]:
        """Make and try one mutant in an empty folder: its outcome, what it is, what was seen."""
        ...


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, attack, print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("subject", choices=[*SUBJECTS, "all"])
    parser.add_argument("--count", type=int, default=100, help="mutants of each subject")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1, help="processes that try mutants at the same time")
    parser.add_argument("--replay", metavar="SEED:INDEX", help="try this one mutant, and show everything that it said")
    options = parser.parse_args(arguments)
    names = list(SUBJECTS) if options.subject == "all" else [options.subject]
    seed, indices = options.seed, range(options.count)
    if options.replay:
        seed, index = map(int, options.replay.split(":"))
        indices = range(index, index + 1)
    findings: list[Finding] = []
    for name in names:
        start = time.monotonic()
        found = attack(name, seed, indices, options.workers)
        findings += found
        print(f"{table(found)} All: {time.monotonic() - start:.0f} s.", flush=True)
        if options.replay:
            print(*(f"{f.outcome}: {f.mutant}\n{f.detail}" for f in found), sep="\n")
    print(failures(findings))
    return 1 if any(finding.failed for finding in findings) else 0


def attack(name: str, seed: int, indices: range, workers: int = 1) -> list[Finding]:
    """Try the mutants of a subject, in `workers` processes that each take every so-many-th; in their order."""
    subject: Any = importlib.import_module(SUBJECTS[name])
    with tempfile.TemporaryDirectory(prefix="diffrl-fuzz-") as made, subject.prepared(Path(made)):
        place = Path(made)
        if workers == 1:
            return list(share(subject, name, seed, indices, place))
        context = multiprocessing.get_context("fork")
        queue = context.Queue()

        def work(number: int) -> None:
            for finding in share(subject, name, seed, indices[number::workers], place / str(number)):
                queue.put(finding)

        processes = [context.Process(target=work, args=(number,)) for number in range(workers)]
        for process in processes:
            process.start()
        found = [queue.get() for _ in indices]
        for process in processes:
            process.join()
    return sorted(found, key=lambda finding: finding.index)


def share(subject: Subject, name: str, seed: int, indices: Sequence[int], place: Path) -> Iterator[Finding]:
    """Try some mutants, one after the other, each in a folder that is removed afterwards."""
    for index in indices:
        inner = place / f"{index}"
        folder = inner / "a/b"  # so that ".." stays inside
        folder.mkdir(parents=True)
        start = time.monotonic()
        try:
            outcome, mutant, detail = subject.attempt(random.Random(f"{name}:{seed}:{index}"), folder)
        except Exception:  # told as a fault, and the next mutant is tried
            outcome, mutant, detail = "attack", "?", traceback.format_exc()
        finding = Finding(name, seed, index, outcome, mutant, detail, time.monotonic() - start)
        if finding.failed:
            print(f"{name} {seed}:{index}: {outcome}: {mutant[:200]}", file=sys.stderr, flush=True)
        shutil.rmtree(inner, ignore_errors=True)
        yield finding


if __name__ == "__main__":
    sys.exit(main())
