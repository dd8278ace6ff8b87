"""The rule of a tree's record: by what words and numbers an iteration gave credit and was updated."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from diffrl.config.schema import Config
from diffrl.credit.rules import reward_rule
from diffrl.records import Edges
from diffrl.rewards.score import WeightedScorer


def rule_of(config: Config, edges: Edges, skipped: int = 0, learning_rate: float | None = None) -> dict[str, Any]:
    """Return `TreeRecord.rule` of an iteration.

    Args:
        config: of the run.
        edges: stochastic steps that were traced, whether or not they train.
        skipped: updates that a guard left out.
        learning_rate: of the last update.
    """
    r, o = config.credit, config.objective
    turns = {"constraint": r.turning_points.constraint, "balance": r.turning_points.balance}
    clips = {} if o.clips is None else dict(zip(("clip", "clip_high"), o.clips, strict=True))
    return {
        "reward": r.reward,
        "value": r.value,
        "fusion": r.fusion,
        **(turns if reward_rule(r.reward).by_turns else {}),
        "normalise": r.normalise,
        "baseline": r.baseline,
        "std": r.std,
        "combine": r.combine,
        "clamp": r.clamp,
        "objective": o.kind,
        "edges": o.trains_steps,
        "samples": o.trains_samples,
        "nodes": o.trains_nodes,
        "kl": float(o.kl_weight),
        "prune": r.prune.width is not None or r.prune.depth is not None,
        **clips,
        "prompts": config.prompts.per_iteration,
        "updates": config.train.updates_per_iteration,
        "skipped": skipped,
        "learning_rate": learning_rate,
        "dimensions": edges.stored[0].numel() if len(edges) else None,
        "dtype": config.model.dtype,
    }


def weights_of(scorers: Sequence[WeightedScorer]) -> dict[str, dict[str, float]]:
    """Return `TreeRecord.weights` of the rewards that an iteration asks."""
    return {s.name: {"weight": float(s.weight), "shift": float(s.shift), "scale": float(s.scale)} for s in scorers}
