"""How long a planned run takes on GPUs that are not here: its operations over a share of their peak.

Nothing here is measured. The share of the peak that a run reaches depends on sizes of batches, kernels and everything
that is left out, so it is asked for and printed.
"""

from __future__ import annotations

from collections.abc import Iterator

from diffrl.config.schema import Config
from diffrl.cost.gpus import Gpu
from diffrl.cost.host_limits import GIB
from diffrl.cost.plan import Plan
from diffrl.cost.process_memory import offer_of, shortages
from diffrl.precision.formats import PRECISIONS

UTILISATION = 0.4
"""What is taken where nothing is said: a guess, which a first iteration on that GPU replaces by a number."""


def hours_of(plan: Plan, gpu: Gpu, utilisation: float) -> float | None:
    """Return hours of the whole run with a GPU for each process; None where its operations are not known.

    Explorers have a GPU each too, and draw while the run waits, or while it does the rest of its work.
    """
    if plan.run_flops is None or plan.flops is None:
        return None
    alone = plan.flops * plan.tree_evaluations  # while other processes wait
    rollout = plan.flops * plan.network_evaluations["rollout"] if plan.explorers else 0
    there, here = rollout / max(plan.explorers, 1), (plan.run_flops - rollout) / plan.world_size + alone
    return (max(there, here) if plan.overlap else there + here) / (gpu.bf16 * utilisation) / 3600


def cost_of(plan: Plan, hours: float, price: float) -> float:
    """Return what hours of the whole run cost, in the currency of `price`, which is a GPU's for an hour."""
    return (plan.world_size + plan.explorers) * hours * price


def hours_rows(
    plan: Plan, gpus: tuple[Gpu, ...], utilisation: float, price: float | None = None
) -> Iterator[tuple[str, str]]:
    """Yield a row of `plan_text` for each GPU: hours, what they cost, and whether its memory suffices."""
    if not gpus:
        return
    yield f"Hours, at {utilisation:g} of the peak", "" if plan.run_flops is not None else "not known: see below"
    for gpu in gpus:
        hours, peak = hours_of(plan, gpu, utilisation), gpu.bf16 / 1e12
        cells = [] if hours is None else [f"{hours_text(hours)} at {utilisation:g} x {peak:g} TFLOP/s"]
        if hours is not None and price is not None:
            cells.append(f"costs {cost_of(plan, hours, price):,.2f} at {price:g} a GPU hour")
        if plan.memory is not None:
            fits = "does not fit" if shortages(plan.memory, offer_of(gpu), plan.world_size) else "fits"
            cells.append(f"{fits}: {plan.memory.needed('cuda') / GIB:.1f} of {gpu.memory / GIB:.1f} GiB")
        yield f"  {plan.world_size + plan.explorers} x {gpu.title}", ", ".join(cells)


def hours_text(hours: float) -> str:
    """Return hours with as many digits as they deserve."""
    if hours < 0.95:
        return f"{60 * hours:.2g} minutes"
    return f"{hours:.1f} hours" if hours < 10 else f"{hours:,.0f} hours"


def hours_notes(plan: Plan, config: Config, gpus: tuple[Gpu, ...]) -> Iterator[str]:
    """Yield what the hours leave out or take for granted."""
    if not gpus:
        return
    if plan.run_flops is None:
        yield "No hours: the sizes of this pipeline's network are not known before it is loaded."
        return
    yield (
        "Hours are arithmetic, not measured, and too few: text encoders, decoder, rewards, exchange between processes "
        "and checkpoints are left out."
    )
    if config.model.dtype != "bfloat16":
        yield f"The peak is bfloat16's, and model.dtype is {config.model.dtype}: that takes several times as long."
    copy = config.rollout.policy_copy
    if copy is not None and PRECISIONS[copy.precision].low:
        stage = "Exploring" if config.rollout.draw is None else "Drawing"
        yield f"{stage} in {copy.precision} is counted as if it took as long as bfloat16."
    if config.model.lora is not None:
        yield "A backward pass counts twice a forward one; a LoRA's takes less, for frozen weights have no gradient."
    for gpu in gpus:
        yield f"{gpu.title}: {gpu.source}."
