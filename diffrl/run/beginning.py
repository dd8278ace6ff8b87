"""What is said of a run before it begins, and what there will be to count in it."""

from __future__ import annotations

from diffrl import pulse
from diffrl.config.schema import Config
from diffrl.cost.meter import UNGRADED
from diffrl.cost.plan import Plan
from diffrl.training.session import Session


def start_line(session: Session) -> str:
    """The model, what is trained of it, the samples of an iteration, the machine and the precision."""
    c, world = session.config, session.ranks.world
    trained = sum(p.numel() for p in session.policy.parameters.values())
    lora = "all of the transformer" if c.model.lora is None else f"a LoRA of rank {c.model.lora.rank}"
    each = session.plan.samples // session.plan.groups
    return (
        f"{c.model.path} ({c.model.family}): {trained:,} parameters trained, {lora}. An iteration has "
        f"{session.plan.groups} prompts x {each} samples. On {session.device}{f' x {world}' * (world > 1)} in "
        f"{c.model.dtype}."
    )


def iteration_totals(plan: Plan, config: Config) -> dict[str, int]:
    """What one process does in an iteration, on average, as `diffrl.pulse` counts it."""
    shares = plan.iterations * plan.world_size
    asked = {name: plan.velocities[name] // shares for name in (*UNGRADED, "update")}
    drawn = ("explore", "rollout", "values", "old")
    updates = sum(count for name, count in asked.items() if name not in drawn)
    held_out = plan.evaluations * config.eval.samples
    return {
        **{name: asked[name] for name in drawn},
        "update": updates,
        pulse.DECODED: (plan.decodes - held_out) // shares,
        pulse.SCORED: (plan.reward_calls - held_out * len(config.eval.rewards)) // shares,
    }


def evaluation_totals(plan: Plan, config: Config) -> dict[str, int]:
    """The same of a held-out evaluation."""
    samples = config.eval.samples // plan.world_size
    return {
        "evaluation": samples * config.eval.steps,
        pulse.DECODED: samples,
        pulse.SCORED: samples * len(config.eval.rewards),
    }
