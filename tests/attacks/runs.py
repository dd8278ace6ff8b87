"""Real runs ended at random moments, by kill -9 and by full disks, then resumed: the end must be the same bit for bit.

    python -m tests.attacks.runs --kills 30 --disks 10 --seed 0

A run is killed one to three times in a row, then seen through and compared with one that nobody disturbed: every metric
but times, every sample with its picture, the last checkpoint, the summary. A fifth of the kills hit runs of two
processes with split weights (FSDP). A full disk is a small tmpfs with a file that leaves a random number of bytes,
too few; the run must end with a sentence, and once the file is gone it is resumed. Mounting needs root, or
`unshare --user --map-root-user --mount python -m tests.attacks.runs ...`; where it cannot
be done the disks are left out, which is said. Prints a line each; the exit status is 1 if anything is wrong.
docs/reliability.md has the figures.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"  # sums round alike in all processes
os.environ["HF_HUB_OFFLINE"] = "1"

from tests.attacks.interrupted import Alone, Course, Sharded, size_of, small_disk, words_for  # noqa: E402
from tests.attacks.trial import MARK, warm  # noqa: E402

SHARDED_SHARE = 1 / 5
MOST_KILLS = 3
"""Of one run."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, attack, print; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--disks", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    warm()
    start = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="diffrl-attack-") as name:
        place = Path(name)
        alone = Course(Alone, place / "alone")
        sharded = round(options.kills * SHARDED_SHARE)
        figures = {
            "kill -9, one process": kill(alone, options.kills - sharded, random.Random(f"alone:{options.seed}")),
            "full disk": fill(alone, options.disks, random.Random(f"disk:{options.seed}")),
        }
        if sharded:
            course = Course(Sharded, place / "sharded")
            figures["kill -9, two processes, FSDP"] = kill(course, sharded, random.Random(f"fsdp:{options.seed}"))
    problems = [problem for found in figures.values() for problem in found["problems"]]
    print(*(f"{name}: {found['times']} times, {found['runs']} runs, {len(found['problems'])} wrong"
            for name, found in figures.items()), sep="\n")  # fmt: skip
    print(*problems, f"All: {time.monotonic() - start:.0f} s.", sep="\n")
    return 1 if problems else 0


def kill(course: Course, count: int, rng: random.Random) -> dict[str, Any]:
    """Kill runs until so many kills have hit, and see each through."""
    done, problems, runs = 0, [], 0
    while done < count:
        folder = course.fresh(f"{course.folder.name}-{runs}")
        runs += 1
        story: list[str] = []
        try:
            for _ in range(min(count - done, rng.randint(1, MOST_KILLS))):
                if what := course.disturbed(rng, folder):
                    story.append(what)
            wrong = course.seen_through(folder)
        except RuntimeError as error:
            wrong = [str(error)]
        done += len(story)
        print(f"{course.folder.name} {runs}: {', '.join(story) or 'it had ended'}: {wrong or 'the same'}", flush=True)
        problems += [f"{course.folder.name} {runs} ({', '.join(story)}): {problem}" for problem in wrong]
        shutil.rmtree(folder, ignore_errors=True)
    return {"times": done, "runs": runs, "problems": problems}


def fill(course: Course, count: int, rng: random.Random) -> dict[str, Any]:
    """Let runs meet a full disk, free it, and see them through."""
    needed, problems, full = size_of(course.folder / "run"), [], 0
    size = 4 * needed
    for number in range(count):
        free = rng.randrange(int(needed * 0.9))
        try:
            with small_disk(course.folder.with_name(f"disk-{number}"), size) as disk:
                shutil.copy(course.folder / "config.yaml", disk)
                wrong = meet(course, disk, free)
        except PermissionError as error:
            print(f"Full disks are left out: no tmpfs can be mounted here ({error}). Run it as root, or under unshare "
                  "--user --map-root-user --mount.")  # fmt: skip
            break
        full += 1
        print(f"disk {number}: {free:,} of {needed:,} bytes free: {wrong or 'the same'}", flush=True)
        problems += [f"disk {number} with {free} bytes: {problem}" for problem in wrong]
    return {"times": full, "runs": full, "problems": problems}


def meet(course: Course, disk: Path, free: int) -> list[str]:
    """One run on a disk with so many bytes free, and again with space; what is wrong."""
    filler = disk / "filler"
    with filler.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, shutil.disk_usage(disk).free - free)
    found = Alone(disk, words_for(disk)).ended()
    code = found.last("code")
    filler.unlink()
    wrong = []
    if MARK in found.output or found.hangs or code not in (0, 2) or (code == 2 and "error:" not in found.output):
        wrong.append(f"the full disk ended it with {code}, hanging {found.hangs}: {found.output[-1500:]}")
    return [*wrong, *course.seen_through(disk)]


if __name__ == "__main__":
    sys.exit(main())
