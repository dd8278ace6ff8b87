"""What the tuning of each method may turn: `scripts/tune_methods.py` reads nothing else.

Equal effort means spaces of like size, the same number of trials, one sampler. Each method has a rate, what its paper
varies, and a pull to a guided reference, which no rival's paper has. A first trial is the setting that the method has
without guidance in docs/results.md, so that none starts from worse knowledge.
"""

import json
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MEASURED = Path(__file__).parents[2] / "docs" / "measured"
BUDGET = 20_000
"""Evaluations of a trial, unless said otherwise."""
FOLDERS = {"shapes": "configs/tiny-sd3", "words": "configs/tiny-words"}
COMMON = "rollout.steps=4 prompts.per_iteration=8 track.trees=null train.warmup_updates=2"
REGIMES = {
    "plain": "",
    "guided": "rollout.guidance_scale=3.0 eval.guidance_scale=3.0",
}
"""Guidance of rollouts and of what is judged; 3 is the best scale of the base model on shapes."""

RATES = {f"{rate:g}": f"train.learning_rate={rate}" for rate in (7.5e-5, 1.5e-4, 2e-4, 3e-4, 6e-4)}
SAMPLES = {str(n): f"rollout.tree.roots={n}" for n in (4, 8, 16)}
CLIPS = {f"{c:g}": f"objective.clip={c}" for c in (1e-4, 1e-3)}
UPDATES = {str(n): f"train.updates_per_iteration={n}" for n in (1, 2)}


def pulls(weights: tuple[float, ...], guidance: tuple[float, ...]) -> dict[str, str]:
    """Return no pull, and pulls of some weights to a reference of some guidance."""
    pull = {f"{w:g} to {g:g}": f"objective.kl={w} objective.kl_guidance={g}" for w in weights for g in guidance}
    return {"none": "objective.kl=0.0 objective.kl_guidance=null", **pull}


GRPO = {"clip": CLIPS, "updates": UPDATES, "pull": pulls((0.03, 0.1), (3.0, 5.0))}
"""What every method that trains steps by GRPO may turn, besides its rate and its own."""


def _tree(branches: int | list[int], splits: tuple[int, ...]) -> str:
    return f"rollout.tree={{roots: 1, branches: {branches}, splits: {list(splits)}, correlation: 4.0}}"


def _window(size: int, slide_every: int | None = None) -> str:
    slide = "" if slide_every is None else f", slide_every: {slide_every}"
    return f"rollout.solver=ab2 rollout.stochastic={{kind: window, start: 0, size: {size}{slide}}}"


@dataclass(frozen=True)
class Space:
    """A method's preset, and the overrides that each of its knobs may be."""

    preset: str  # a recipe's name, with the overrides that all trials share
    knobs: Mapping[str, Mapping[str, str]]  # knob -> choice -> overrides
    start: Mapping[str, str]  # the first trial: knob -> choice

    def settings(self, choices: Mapping[str, str], world: str, regime: str) -> str:
        """Return recipe and overrides of a trial, as `diffrl compare` takes them."""
        name, _, shared = self.preset.partition(" ")
        chosen = [self.knobs[knob][choice] for knob, choice in choices.items()]
        parts = [f"{FOLDERS[world]}/{name}.yaml", COMMON, REGIMES[regime], shared, *chosen]
        return " ".join(part for part in parts if part)


SPACES = {
    "diffrl": Space(
        "diffrl rollout.solver=ab2",
        {
            "rate": RATES,
            "trees": {str(n): f"rollout.tree.roots={n}" for n in (1, 2)},
            "branches": {str(n): f"rollout.tree.branches={n}" for n in (2, 3, 4)},
            "second split": {str(n): f"rollout.tree.splits=[0,{n}]" for n in (1, 2)},
            "pull": pulls((0.02, 0.05, 0.1), (3.0, 5.0)),
            "updates": UPDATES,
        },
        {"rate": "0.0003", "trees": "1", "branches": "4", "second split": "2", "pull": "0.05 to 3", "updates": "1"},
    ),
    "art": Space(
        "art",
        {
            "rate": RATES,
            "samples": {"3": "rollout.tree.roots=3", **SAMPLES},
            "levels": {str(n): f"objective.levels={n}" for n in (1, 2, 4)},
            "step": {f"{g:g}": f"objective.step={g}" for g in (0.1, 0.3)},
            "updates": UPDATES,
            "pull": pulls((0.01, 0.03), (3.0, 5.0)),
        },
        {"rate": "0.00015", "samples": "4", "levels": "1", "step": "0.3", "updates": "2", "pull": "none"},
    ),
    "nft": Space(
        "diffusion_nft",
        {
            "rate": RATES,
            "samples": SAMPLES,
            "levels": {str(n): f"objective.levels={n}" for n in (1, 3)},
            "beta": {f"{b:g}": f"objective.beta={b}" for b in (0.1, 1.0)},
            "updates": UPDATES,
            "pull": pulls((0.1, 0.3), (1.0, 3.0)),
        },
        {"rate": "0.0002", "samples": "16", "levels": "1", "beta": "1", "updates": "1", "pull": "none"},
    ),
    "awm": Space(
        "awm",
        {
            "rate": RATES,
            "samples": SAMPLES,
            "levels": {str(n): f"objective.levels={n}" for n in (1, 3, 6)},
            "updates": UPDATES,
            "pull": pulls((0.1, 0.3), (1.0, 3.0)),
        },
        {"rate": "0.0002", "samples": "16", "levels": "1", "updates": "1", "pull": "none"},
    ),
    "flow_grpo": Space(
        "flow_grpo",
        {
            "rate": RATES,
            "samples": SAMPLES,
            "noise": {
                "every step": "rollout.stochastic={kind: all}",
                "first step": "rollout.solver=ab2 rollout.stochastic={kind: window, start: 0, size: 1}",
                "first two": "rollout.solver=ab2 rollout.stochastic={kind: window, start: 0, size: 2}",
            },
            **GRPO,
        },
        {"rate": "0.00015", "samples": "16", "noise": "every step", "clip": "0.001", "updates": "2", "pull": "none"},
    ),
    "branch_grpo": Space(
        "branch_grpo",
        {
            "rate": RATES,
            "tree": {
                "2 x 2 x 2": _tree(2, (0, 1, 2)),
                "4 x 2 x 2": _tree([4, 2, 2], (0, 1, 2)),
                "4 x 4": _tree(4, (0, 2)),
            },
            **GRPO,
        },
        {"rate": "0.00015", "tree": "4 x 2 x 2", "clip": "0.001", "updates": "2", "pull": "none"},
    ),
    "mix_grpo": Space(
        "mix_grpo",
        {
            "rate": RATES,
            "samples": SAMPLES,
            "window": {
                "first step": _window(1),
                "first two": _window(2),
                "first three": _window(3),
                "one, sliding every 8": _window(1, 8),
                "two, sliding every 16": _window(2, 16),
            },
            **GRPO,
        },
        {"rate": "0.00015", "samples": "16", "window": "first two", "clip": "0.001", "updates": "2", "pull": "none"},
    ),
    "dance_grpo": Space(
        "dance_grpo",
        {
            "rate": RATES,
            "samples": SAMPLES,
            "eta": {f"{e:g}": f"rollout.dynamics.eta={e}" for e in (0.3, 0.6, 1.0)},
            **GRPO,
        },
        {"rate": "0.00015", "samples": "16", "eta": "0.3", "clip": "0.001", "updates": "2", "pull": "none"},
    ),
    "tp_grpo": Space(
        "tp_grpo",
        {
            "rate": RATES,
            "samples": SAMPLES,
            "noise": {"every step": "rollout.stochastic={kind: all}", "first two": _window(2)},
            "turning points": {
                "on course": "credit.turning_points={constraint: true, balance: true}",
                "any": "credit.turning_points={constraint: false, balance: true}",
            },
            **GRPO,
        },
        {
            "rate": "0.00015",
            "samples": "16",
            "noise": "every step",
            "turning points": "on course",
            "clip": "0.001",
            "updates": "2",
            "pull": "none",
        },
    ),
    "branch_grpo_mix": Space(
        "branch_grpo_mix",
        {
            "rate": RATES,
            "tree": {
                "2 x 2 x 2": _tree(2, (0, 1, 2)),
                "4 x 2 x 2": _tree([4, 2, 2], (0, 1, 2)),
                "4 x 4": _tree(4, (0, 1)),
            },
            "window": {
                "first two": _window(2),
                "one, sliding every 8": _window(1, 8),
                "two, sliding every 16": _window(2, 16),
            },
            **GRPO,
        },
        {
            "rate": "0.00015",
            "tree": "2 x 2 x 2",
            "window": "two, sliding every 16",
            "clip": "0.001",
            "updates": "2",
            "pull": "none",
        },
    ),
    "diffrl_nft": Space(
        "diffrl_nft rollout.solver=ab2",
        {
            "rate": RATES,
            "tree": {
                "4 roots, 2 x 2": "rollout.tree={roots: 4, branches: 2, splits: [0, 2], correlation: 4.0}",
                "2 roots, 4 x 2": "rollout.tree={roots: 2, branches: [4, 2], splits: [0, 2], correlation: 4.0}",
                "4 x 4": _tree(4, (0, 2)),
            },
            "edges": {f"{w:g}": f"objective.edges.weight={w}" for w in (2.0, 6.0)},
            "credit": {kind: f"credit.reward={kind}" for kind in ("turning_point", "fused")},
            "updates": UPDATES,
            "pull": pulls((0.1, 0.3), (1.0, 3.0)),
        },
        {
            "rate": "0.0002",
            "tree": "4 roots, 2 x 2",
            "edges": "6",
            "credit": "turning_point",
            "updates": "1",
            "pull": "none",
        },
    ),
}


def trials_file(world: str, regime: str, budget: int = BUDGET) -> Path:
    """Return where a regime's trials are kept: a line each, with method, number, seed, choices and score."""
    name = f"{regime}-{world}" if budget == BUDGET else f"{regime}-{world}-{budget // 1000}k"
    return MEASURED / "tuning" / f"{name}.jsonl"


def read_trials(path: Path) -> list[dict]:
    """Return the trials that a file holds; none where there is no file."""
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def best(method: str, trials: list[dict]) -> tuple[dict[str, str], float, int]:
    """Return a method's choices of the highest mean score, that mean, and its number of seeds.

    Choices that were run with most seeds alone count: the luck of one seed is what the others are there to take away.
    """
    scores: dict[str, dict[int, float]] = {}
    for trial in trials:
        if trial["method"] == method and trial["score"] is not None:
            scores.setdefault(json.dumps(trial["choices"]), {})[trial["seed"]] = trial["score"]
    most = max(map(len, scores.values()))
    means = {key: statistics.fmean(by.values()) for key, by in scores.items() if len(by) == most}
    winner = max(means, key=lambda key: means[key])
    return json.loads(winner), means[winner], most
