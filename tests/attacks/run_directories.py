"""Damaged run directories: resumed they end as they would have, or are refused by a sentence; nothing is deleted."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from tests.attacks import configurations, mutate, same_run
from tests.attacks.trial import MARK, Ended, Send, command, isolated, warm

ITERATIONS, ENDED_AFTER = 4, 3
"""Of the run that is damaged: how many it would have, and after which it was ended; a checkpoint lies after each."""
SMALL = {
    "run": {
        "name": "run",
        "dir": ".",
        "iterations": ITERATIONS,
        "checkpoint_every": 1,
        "eval_every": 2,
        "keep_checkpoints": None,
    },
    "eval": {"samples": 4, "steps": 1},
    "track": {"pictures_per_iteration": 2, "pictures_per_evaluation": 2, "trees": {"prompts": 1, "every": 2}},
}


AGAIN = "starts again from the beginning"
"""What a run says that has no checkpoint; right only if it had come to none."""
VITAL = (
    "checkpoints", f"checkpoints/step-00000{ENDED_AFTER}", f"checkpoints/step-00000{ENDED_AFTER}/state.json",
    f"checkpoints/step-00000{ENDED_AFTER}/manifest.json", f"checkpoints/step-00000{ENDED_AFTER}/policy.safetensors",
    "config.yaml", "environment.json", "metrics.jsonl", "samples.sqlite", "samples", "log.txt",
)  # fmt: skip
"""What a resumed run looks at first."""


@dataclass(frozen=True)
class Prepared:
    """Where the run that was ended lies, and the same run seen through."""

    ended: Path
    whole: Path


_prepared: list[Prepared] = []


@contextmanager
def prepared(place: Path) -> Iterator[None]:
    """Make the run that is damaged, and the one that it must become."""
    warm()
    folder = place / "first"
    folder.mkdir()
    data = json.loads(json.dumps(configurations.base("tiny-sd3/diffrl.yaml")))
    for section, values in SMALL.items():
        data[section] |= values
    (folder / "config.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
    for name, function in (("ended", _train_and_end), ("whole", _resume)):
        if name == "whole":
            shutil.copytree(folder / "ended", folder / "run")
        found = isolated(function, folder, "config.yaml" if name == "ended" else "run", seconds=600)
        if found.last("code") != (1 if name == "ended" else 0):
            raise RuntimeError(f"The run that is to be damaged could not be made:\n{found.output[-3000:]}")
        (folder / "run").rename(folder / name)
    _prepared.append(Prepared(folder / "ended", folder / "whole"))
    yield
    _prepared.pop()


def _train_and_end(send: Send, config: str) -> None:
    """Train until the last checkpoint but one, and end as rudely as a kill."""
    from diffrl.training.loop import Trainer

    iterate = Trainer.iterate

    def held(trainer: Trainer) -> Any:
        if trainer.iteration == ENDED_AFTER:
            send(("code", 1))
            os._exit(0)
        return iterate(trainer)

    Trainer.iterate = held  # type: ignore[method-assign]
    send(("code", command(["train", config])))


def _resume(send: Send, run: str) -> None:
    send(("code", command(["train", "--resume", run])))


def attempt(rng: random.Random, folder: Path) -> tuple[str, str, str]:
    """Damage a copy in one to three places and resume it: outcome, what was done, what was seen."""
    run = folder / "run"
    shutil.copytree(_prepared[-1].ended, run)
    done = ", ".join(damage(rng, run) for _ in range(rng.choice((1, 1, 1, 2, 3))))
    before = contents(run)
    ended = isolated(_resume, folder, "run")
    outcome, detail = judge(ended, run, before, done)
    return outcome, done, detail


def damage(rng: random.Random, run: Path) -> str:
    """Do one thing to a run directory; what."""
    paths = sorted(run.rglob("*"))
    there = [run / name for name in VITAL if (run / name).exists()]
    kind = rng.choice(("bytes", "bytes", "edited", "edited", "edited", "removed", "replaced", "added", "renamed"))
    texts = (".json", ".jsonl", ".yaml")
    if kind == "edited":
        paths, there = ([path for path in found if path.suffix in texts] for found in (paths, there))
    path = rng.choice(there if there and rng.random() < 0.7 else paths)
    name = str(path.relative_to(run))
    if kind == "edited" and path.is_file():
        return f"{name}: {edited(rng, path)}"
    if kind == "renamed":
        other = path.with_name(
            rng.choice(["step-000009", "step-000000", "step-xx", f"{path.name}.bak", f".{path.name}"])
        )
        if not other.exists():
            path.rename(other)
            return f"{name} renamed to {other.name}"
    if kind == "added":
        return added(rng, run)
    if kind == "bytes" and path.is_file():
        data, what = mutate.damaged(rng, path.read_bytes())
        path.write_bytes(data)
        return f"{name} {what}"
    remove(path)
    return f"{name} removed" if kind != "replaced" else f"{name} is {put_instead(rng, path)}"


def edited(rng: random.Random, path: Path) -> str:
    """Change a JSON or YAML file so that it can still be read; of a checkpoint, the manifest is made to agree."""
    text = path.read_text(encoding="utf-8", errors="replace")
    try:
        if path.suffix == ".jsonl":
            lines = text.splitlines()
            number = rng.randrange(len(lines))
            data = {"line": json.loads(lines[number])}
        else:
            data = yaml.safe_load(text) if path.suffix == ".yaml" else json.loads(text)
        change = rng.choice(
            [*mutate.SHAPES, lambda rng, data: mutate.nearby_value(rng, data, configurations.choices())]
        )
        done = change(rng, data)
        if path.suffix == ".jsonl":
            lines[number] = json.dumps(data.get("line"))
            path.write_text("\n".join(lines) + "\n", encoding="utf-8")
        else:
            path.write_text(yaml.safe_dump(data) if path.suffix == ".yaml" else json.dumps(data), encoding="utf-8")
    except (ValueError, IndexError, TypeError, yaml.YAMLError):  # an earlier damage left nothing to edit
        path.write_text("{}", encoding="utf-8")
        return "is {}"
    if path.name == "state.json":
        agree(path)
    return done


def agree(path: Path) -> None:
    """Let a checkpoint's manifest say what a changed file really is: a program wrote it so, no disk broke it."""
    manifest = path.with_name("manifest.json")
    try:
        data = json.loads(manifest.read_text(encoding="utf-8"))
        data["files"][path.name] = {"bytes": path.stat().st_size, "sha256": same_run.digest(path)}
        manifest.write_text(json.dumps(data), encoding="utf-8")
    except (OSError, ValueError, KeyError, TypeError):
        return


def added(rng: random.Random, run: Path) -> str:
    """Something that does not belong there."""
    place = rng.choice([run, run / "checkpoints", run / "samples", run / "checkpoints/step-000003"])
    step = rng.choice(("000003", "000004", "000009", "999999999"))
    name = rng.choice((f".writing-step-{step}", f".replaced-step-{step}", f".discarded-step-{step}", f"step-{step}",
                       "eval-000004", "train-000009", "notes.txt", "summary.json", "trees", "log.txt"))  # fmt: skip
    path = place / name
    if not place.is_dir() or path.exists() or path.is_symlink():
        return "nothing added"
    return f"{path.relative_to(run)} is {put_instead(rng, path)}"


def put_instead(rng: random.Random, path: Path) -> str:
    """Put something that nobody expects at a place that is free; what."""
    kind = rng.choice(("a folder", "a file", "a link to nothing", "a link to itself", "a link to a folder", "a FIFO",
                       "a folder with files"))  # fmt: skip
    if not path.parent.is_dir():
        return "gone with its folder"
    if kind == "a file":
        path.write_bytes(rng.randbytes(100))
    elif kind.startswith("a folder"):
        path.mkdir()
        if "files" in kind:
            (path / "mine.txt").write_text("mine", encoding="utf-8")
    elif kind == "a FIFO":
        os.mkfifo(path)
    else:
        outside = path.parent / f"{path.name}-elsewhere"
        if "folder" in kind:
            outside.mkdir()
            (outside / "mine.txt").write_text("mine", encoding="utf-8")
        path.symlink_to({"a link to nothing": "nothing-there", "a link to itself": path.name}.get(kind, outside.name))
    return kind


def remove(path: Path) -> None:
    """Remove whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()


@dataclass(frozen=True)
class Contents:
    """What is a user's: hashes of pictures and checkpoints, iterations of metrics, addresses of samples."""

    files: frozenset[str]
    iterations: frozenset[Any]
    samples: frozenset[str]


def contents(run: Path) -> Contents:
    """What is there, as far as it can be read."""
    files, iterations, addresses = set(), set(), set()
    for path in run.rglob("*"):
        if path.is_file() and {"samples", "checkpoints"} & set(path.relative_to(run).parts):
            files.add(same_run.digest(path))
    for path in run.rglob("metrics*"):
        if path.is_file():
            for line in path.read_bytes().splitlines():
                try:
                    row = json.loads(line)
                    iterations |= {int(row["iteration"])}
                except (ValueError, TypeError, KeyError, RecursionError, OverflowError):
                    continue
    for path in run.rglob("samples*.sqlite*"):
        if path.is_file() and not path.name.endswith(("-wal", "-shm")):
            try:
                with sqlite3.connect(path) as database:
                    rows = database.execute("SELECT stage, iteration, group_id, root, path FROM samples").fetchall()
                addresses |= {"/".join(map(str, row)) for row in rows}
                database.close()
            except sqlite3.Error:
                continue
    return Contents(frozenset(files), frozenset(iterations), frozenset(addresses))


def judge(ended: Ended, run: Path, before: Contents, done: str) -> tuple[str, str]:
    """Outcome and what was seen, of one resumed run."""
    code, tail = ended.last("code"), ended.output[-4000:]
    if ended.hangs:
        return "hang", configurations.where(ended.output)
    if MARK in ended.output or isinstance(code, str):
        return "traceback", f"{code}\n{tail}"
    if ended.code != 0 or code not in (0, 2, 3):
        return "died", f"exit {ended.code}, {code}\n{tail}"
    if code and "error" not in ended.output:
        return "no sentence", tail
    after = contents(run)
    lost = [f"iteration {number}" for number in sorted(before.iterations - after.iterations)]
    lost += [f"sample {address}" for address in sorted(before.samples - after.samples)]
    if code:
        lost += [f"a file ({digest[:12]})" for digest in before.files - after.files]
    plausible = [line for line in lost if not beyond(line)]
    if plausible:
        return "lost", f"{len(plausible)}: {', '.join(plausible[:5])}; exit {code}\n{tail}"
    if code:
        return "refused", tail
    if AGAIN in ended.output and before.iterations - {0}:
        return "lost", f"all was trained again, over what was there\n{tail}"
    if silent := unsaid(run, ended.output):
        return "lost", f"{silent}, and nothing was said\n{tail}"
    found = same_run.differences(run, _prepared[-1].whole, (same_run.last_row, same_run.checkpoint))
    if not found:
        return "resumed alike", ""
    if "config.yaml" in ended.output or "state.json:" in done:  # it was said, or nobody can know
        return "resumed with what was edited", ""
    return "differs", "\n".join([*found, tail])


def unsaid(run: Path, output: str) -> str:
    """What of the history is missing in a run that was resumed, unless it said so; empty if nothing is."""
    rows = {row.get("iteration") for row in same_run.rows(run)}
    if not rows >= set(range(ITERATIONS + 1)) and "metrics.jsonl" not in output:
        return f"metrics.jsonl has the iterations {sorted(rows)} alone"
    expected, found = (len(contents(path).samples) for path in (_prepared[-1].whole, run))
    if found < expected and "samples.sqlite" not in output:
        return f"samples.sqlite has {found} of {expected} samples"
    return ""


def beyond(line: str) -> bool:
    """Whether what is gone was never the run's: rows of iterations that it had not reached."""
    what, _, rest = line.partition(" ")
    number = {"iteration": rest, "sample": rest.split("/")[1] if "/" in rest else ""}.get(what, "0")
    return not number.isdecimal() or int(number) > ENDED_AFTER
