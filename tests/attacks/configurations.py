"""Mutants of the shipped configurations: what `check` accepts must train one iteration, or be refused by a sentence."""

from __future__ import annotations

import copy
import json
import math
import random
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.attacks import mutate
from tests.attacks.findings import FLOOD
from tests.attacks.trial import GIB, MARK, Ended, Send, command, isolated, warm
from tests.attacks.yaml_text import broken_text

ROOT = Path(__file__).resolve().parents[2]
BASES = ("quickstart.yaml", "tiny-wan/quickstart.yaml", *(
    f"tiny-sd3/{name}.yaml"
    for name in (
        "lora", "diffrl", "tree_tilt", "diffrl_nft", "flow_grpo", "dance_grpo", "mix_grpo", "branch_grpo",
        "branch_grpo_mix", "tp_grpo", "diffusion_nft", "sol_rl", "awm", "dgpo", "crd",
    )
))  # fmt: skip
SMALL: dict[str, Any] = {
    "run": {"name": "run", "dir": "runs", "iterations": 1, "checkpoint_every": 1, "eval_every": None},
    "prompts": {"per_iteration": 2},
    "train": {"warmup_updates": 0, "updates_per_iteration": 1},
    "eval": {"samples": 2, "steps": 1},
    "track": {"pictures_per_iteration": 1, "pictures_per_evaluation": 1, "trees": {"prompts": 1}},
}
EVALUATIONS, PICTURES, PEAK = 3_000, 400, 3 * GIB
"""A run with more network calls, decoded and scored pictures, or bytes than this is right and too large to try here."""
PIXELS = 32 * 32
"""Of the tiny pipelines' own pictures; one twice as wide counts as several."""
OWN_PATHS = ("~", "/proc", "a\0b", "b" * 100_000, "../x", "", "runs/../runs", "nobody/nothing", "assets")
"""In place of folders and pipelines: nothing here leads out of the folder that is removed afterwards."""


@dataclass(frozen=True)
class Mutant:
    """A configuration file, words of the command line beside it, and what was changed."""

    text: bytes
    overrides: tuple[str, ...]
    done: str


@cache
def base(name: str) -> dict[str, Any]:
    """A shipped configuration with every key, shrunk to one cheap iteration."""
    from diffrl.config import dump_config, load_config

    data: dict[str, Any] = yaml.safe_load(dump_config(load_config(ROOT / "configs" / name)))
    for section, values in SMALL.items():
        data[section] |= values
    data["model"]["path"] = str(ROOT / data["model"]["path"])
    rollout = data["rollout"]
    rollout["steps"] = min(rollout["steps"], 5)
    rollout["tree"]["roots"] = {0: 4, 1: 2, 2: 2}.get(len(rollout["tree"]["splits"]), 1)
    if rollout["explore"]:
        rollout["explore"] |= {"candidates": 8, "keep": 4, "steps": 3}
    return data


@cache
def choices() -> Mapping[str, tuple[Any, ...]]:
    """The words that a key may have, by the key's name, from the schema."""
    from diffrl.config.load import config_schema

    found: dict[str, dict[str, Any]] = {}

    def words(node: Any) -> Iterator[Any]:
        if isinstance(node, dict):
            yield from node.get("enum", [])
            yield from [node["const"]] if "const" in node else []
            for inner in node.get("anyOf", []):
                yield from words(inner)

    def walk(node: Any) -> None:
        if isinstance(node, dict):
            for key, inner in node.get("properties", {}).items():
                found.setdefault(key, {}).update({json.dumps(word): word for word in words(inner)})
        for inner in node.values() if isinstance(node, dict) else node if isinstance(node, list) else ():
            walk(inner)

    walk(config_schema())
    rewards = ("shapes", "shapes_strict", "jpeg_compressibility", "jpeg_incompressibility", "diversity", "flicker")
    found["name"] = {word: word for word in rewards}
    return {key: tuple(values.values()) for key, values in found.items() if values}


def mutant(rng: random.Random) -> Mutant:
    """Draw one: most may well be right, a quarter is of another shape, the others are broken text."""
    name = rng.choice(BASES)
    data = copy.deepcopy(base(name))
    kind, done, overrides = rng.random(), [name.removesuffix(".yaml")], ()
    if kind < 0.2:
        done.append(mutate.extreme_number(rng, data))
    elif kind < 0.6:
        done += [mutate.nearby_value(rng, data, choices()) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    elif kind < 0.85:
        done += [rng.choice(mutate.SHAPES)(rng, data) for _ in range(rng.choice((1, 1, 1, 2, 3)))]
    kept_inside(rng, data)
    if kind < 0.85 and rng.random() < 0.1:
        at = rng.choice([at for at in mutate.leaves(data) if at])
        value = mutate.hostile(rng)
        overrides = (f"{mutate.shown(at)}={json.dumps(value)}",)
        done.append(f"on the command line {mutate.brief(overrides[0])}")
    text = yaml.safe_dump(data, sort_keys=False, allow_unicode=False)
    if kind < 0.85:
        return Mutant(text.encode(), overrides, ", ".join(done))
    damage, what = broken_text(rng, text)
    return Mutant(damage, overrides, ", ".join([*done, what]))


def kept_inside(rng: random.Random, data: Any) -> None:
    """Folders and pipelines that were changed become ones that cannot do harm: a trial runs with its user's rights."""
    for section, key in (("run", "dir"), ("model", "path"), ("prompts", "train"), ("prompts", "eval")):
        values = data.get(section) if isinstance(data, dict) else None
        if isinstance(values, dict) and isinstance(values.get(key), str):
            value = values[key]
            if value.startswith(("/", "~")) and (key == "dir" or not value.startswith(str(ROOT / "assets"))):
                values[key] = rng.choice(OWN_PATHS)


def attempt(rng: random.Random, folder: Path) -> tuple[str, str, str]:
    """Check one mutant, and train it if it is accepted: outcome, what it was, what was seen."""
    made = mutant(rng)
    (folder / "config.yaml").write_bytes(made.text)
    ended = isolated(check_and_train, folder, "config.yaml", list(made.overrides))
    outcome, detail = judge(ended)
    return outcome, made.done, detail


def check_and_train(send: Send, path: str, overrides: list[str]) -> None:
    """The trial: three commands of one user, and a look at whether anything was learnt."""
    code = command(["check", path, *overrides])
    send(("check", code))
    if code:
        return
    send(("plan", command(["plan", path, *overrides])))
    from diffrl.config import load_config
    from diffrl.cost.plan import make_plan

    config = load_config(path, overrides)
    plan = make_plan(config)
    area = ((config.model.height or 32) * (config.model.width or 32) / PIXELS) ** 2
    evaluations, pictures = plan.total_network_evaluations * area, (plan.decodes + plan.reward_calls) * area
    peak = plan.memory.needed("cpu") if plan.memory else 0
    compiled = config.model.compile or (config.rollout.explore is not None and config.rollout.explore.compile)
    if compiled or evaluations > EVALUATIONS or pictures > PICTURES or peak > PEAK:
        size = f"{evaluations:.3g} evaluations, {pictures:.3g} pictures, {peak / GIB:.3g} GiB"
        send(("large", f"{size}, compiled: {compiled}"))
        return
    watch_weights(send)
    send(("peak", peak))
    code = command(["train", path, *overrides])
    if code == 0:
        run_dir = Path(config.run.dir) / config.run.name
        send(("learnt", learnt(run_dir)))
    send(("train", code))


def watch_weights(send: Send) -> None:
    """Tell whether training changes any weight."""
    from diffrl.run.execution import TrainingRun

    original = TrainingRun.run

    def run(self: TrainingRun) -> None:
        policy = self.trainer.session.policy
        before = {name: tensor.clone() for name, tensor in policy.state().items()}
        original(self)
        after = policy.state()
        send(("moved", any(not bool((after[name] == tensor).all()) for name, tensor in before.items())))

    TrainingRun.run = run  # type: ignore[method-assign]


def learnt(run_dir: Path) -> bool:
    """Whether some iteration had a gradient that is a number and not 0."""
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    norms = [row.get("update/grad_norm") for row in rows]
    return any(norm is not None and math.isfinite(norm) and norm > 0 for norm in norms)


def where(output: str) -> str:
    """Where a hanging trial stood: the innermost calls, which faulthandler writes first."""
    return output[max(0, output.rfind("(most recent call first)")) :][:1500]


def judge(ended: Ended) -> tuple[str, str]:
    """Outcome and what was seen, of one trial."""
    codes = {name: ended.last(name) for name in ("check", "plan", "train", "score")}
    done = ", ".join(f"{name} {code}" for name, code in codes.items() if code is not None)
    tail = ended.output[-4000:]
    if ended.hangs:
        return "hang", f"after {done or 'nothing'}\n{where(ended.output)}"
    if MARK in ended.output or any(isinstance(code, str) for code in codes.values()):
        return "traceback", f"{done}\n{tail}"
    code = next((code for code in codes.values() if code), 0)
    if ended.code != 0 or code not in (0, 2, 3):
        return "died", f"exit {ended.code}, {done}\n{tail}"
    if code and not re.search(r"^(error|Error|Usage)\b", ended.output, re.MULTILINE):
        return "no sentence", f"{done}\n{tail}"
    if len(ended.output) > FLOOD:
        return "flood", f"{len(ended.output)} characters, {done}\n{ended.output[:1500]}"
    if codes["check"] or codes["score"]:
        return "refused", ""
    if codes["score"] == 0:
        return "scored", ""
    if codes["plan"]:
        return "no sentence", f"check accepts what plan refuses\n{tail}"
    if (size := ended.last("large")) is not None:
        return "too large to run here", size
    if codes["train"]:
        low = "Out of memory" in ended.output and (ended.last("peak") or 0) < GIB
        return ("memory", tail) if low else ("refused by train", tail)
    if not ended.last("learnt") or not ended.last("moved"):
        return "trained nothing", f"gradient {ended.last('learnt')}, weights moved {ended.last('moved')}\n{tail}"
    return "trained", ""


@contextmanager
def prepared(place: Path) -> Iterator[None]:
    """Import what every trial needs, once, before they are forked from this process."""
    warm()
    choices()
    for name in BASES:
        base(name)
    yield
