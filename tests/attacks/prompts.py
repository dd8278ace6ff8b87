"""Mutated prompt files: .txt and .jsonl to train and evaluate on, and captions to score with."""

from __future__ import annotations

import copy
import json
import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from PIL import Image

from tests.attacks import configurations, mutate
from tests.attacks.trial import Send, command, isolated

LINES = ("a red circle", "two blue squares", "a green triangle above a red circle", "three yellow circles")
LENGTHS = (10, 1000, 20_000, 1_000_000, 30_000_000)
"""Characters of a prompt that is too long, or nearly."""
DEEP = 100_000
NO_FILES = ("FIFO", "folder", "nothing", "circle", "device", "sealed")
REWARD = {"name": "jpeg_incompressibility"}
"""A reward that asks nothing of a prompt, so that any prompt can be trained on."""


def rows(rng: random.Random) -> list[str]:
    """Good lines of a .jsonl file."""
    return [json.dumps({"prompt": line, "level": rng.randrange(3), "tags": ["a", "b"]}) for line in LINES]


def text_lines(rng: random.Random) -> tuple[str, str]:
    """A .txt file that may well be right, and what is strange about it."""
    length = rng.choice(LENGTHS)
    made = {
        "a long prompt": [*LINES, "red " * (length // 4)],
        "a long word": [*LINES, "r" * length],
        "many prompts": [f"a red circle {n}" for n in range(min(length, 100_000))],
        "blank lines": ["", " ", *LINES, "\t", "\u3000", ""],
        "a hostile line": [*LINES, rng.choice(mutate.TEXTS).replace("\ud800", "?")],
        "control characters": [*LINES, "".join(map(chr, range(1, 32)))],
        "all of Unicode": [*LINES, "".join(chr(rng.randrange(0x20, 0xD800)) for _ in range(500))],
        "one line": LINES[:1],
        "the same lines": [LINES[0]] * 7,
        "nothing": [],
    }
    kind = rng.choice(list(made))
    return rng.choice(("\n", "\n", "\r\n", "\r", "\u2028")).join(made[kind]) + "\n", f"{kind} ({length})"


def json_lines(rng: random.Random) -> tuple[str, str]:
    """A .jsonl file that may well be right, and what is strange about it."""
    good, length = rows(rng), rng.choice(LENGTHS)
    records = [json.loads(line) for line in good]
    record = rng.choice(records)
    changed = rng.choice([*mutate.SHAPES, mutate.hostile_value])(rng, record)
    deep = rng.choice(["[", '{"a":'])
    made = {
        f"a record changed: {changed}": [json.dumps(line) for line in records],
        "a surrogate in the prompt": [*good, '{"prompt": "a \\ud800 circle"}'],
        "a surrogate beside it": [*good, '{"prompt": "a circle", "more": "\\ud800", "\\udfff": 1}'],
        "deep": [*good, f'{{"prompt": "a circle", "more": {deep * DEEP}'],
        "deep, and closed": [*good, f'{{"prompt": "a circle", "more": {"[" * DEEP}{"]" * DEEP}}}'],
        "a bit deep": [*good, f'{{"prompt": "a circle", "more": {"[" * 400}{"]" * 400}}}'],
        "no finite numbers": [*good, '{"prompt": "a circle", "more": [NaN, Infinity, -Infinity, 1e999]}'],
        "digits": [*good, f'{{"prompt": "a circle", "more": {"9" * 5000}}}'],
        "a key twice": [*good, '{"prompt": "a circle", "prompt": ""}'],
        f"a long value ({length})": [*good, json.dumps({"prompt": "a circle", "more": "x" * length})],
        f"a long prompt ({length})": [*good, json.dumps({"prompt": "red " * (length // 4)})],
        "a bare value": [*good, rng.choice(["1", "null", "[]", '"a circle"', "{}", "true", "a circle"])],
    }
    kind = rng.choice(list(made))
    return "\n".join(made[kind]) + "\n", kind


def place(rng: random.Random, path: Path, text: str) -> str:
    """Put the file there, or something else in its place; what."""
    kind = rng.choice(["file"] * 10 + ["bytes"] * 5 + ["wide"] + list(NO_FILES))
    if kind == "bytes":
        data, what = mutate.damaged(rng, text.encode("utf-8", "surrogatepass"))
        path.write_bytes(data)
        return what
    if kind == "FIFO":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "circle":
        path.symlink_to(path.name)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "sealed":
        path.write_text(text, encoding="utf-8")
        path.chmod(0)
    elif kind == "wide":
        marks, encoding = rng.choice((0, 1, 2)), rng.choice(("utf-8", "utf-16", "latin-1"))
        path.write_bytes(("\ufeff" * marks + text).encode(encoding, "replace"))
    elif kind == "file":
        path.write_bytes(text.encode("utf-8", "replace"))
    return kind


def attempt(rng: random.Random, folder: Path) -> tuple[str, str, str]:
    """Make one file, and train, evaluate or score with it: outcome, what it was, what was seen."""
    suffix = rng.choice((".txt", ".jsonl"))
    text, what = (text_lines if suffix == ".txt" else json_lines)(rng)
    use = rng.choice(("train", "train", "eval", "both", "captions"))
    name = ("0" if use == "captions" and suffix == ".txt" else "metadata" if use == "captions" else "prompts") + suffix
    placed = place(rng, folder / name, text)
    mutant = f"{name} for {use}: {what}, {placed}"
    if use == "captions":
        Image.new("RGB", (32, 32), (200, 30, 30)).save(folder / "0.png")
        (folder / "list.txt").symlink_to(name)
        words = rng.choice((["."], [".", "--prompts", name], ["0.png", "--prompt", text[:100_000].replace("\0", "")]))
        ended = isolated(_score, folder, words)
    else:
        data: dict[str, Any] = copy.deepcopy(configurations.base("tiny-sd3/flow_grpo.yaml"))
        data["rewards"], data["eval"]["rewards"] = [REWARD], [REWARD]
        for key in ("train", "eval") if use == "both" else (use,):
            data["prompts"][key] = name
        (folder / "config.yaml").write_text(yaml.safe_dump(data), encoding="utf-8")
        ended = isolated(configurations.check_and_train, folder, "config.yaml", [])
    outcome, detail = configurations.judge(ended)
    return outcome, mutant, detail


def _score(send: Send, words: list[str]) -> None:
    """The trial of captions; what is scored counts as trained."""
    code = command(["score", *words, "--reward", "jpeg_compressibility", "--no-cache"])
    if code == 0:
        send(("scored", True))
    send(("score", code))


@contextmanager
def prepared(place: Path) -> Iterator[None]:
    """Import what every trial needs, once."""
    with configurations.prepared(place):
        yield
