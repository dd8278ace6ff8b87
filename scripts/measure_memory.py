"""What a trained and an untrained network call hold at most, measured on fake tensors, beside what `diffrl plan` says.

    python scripts/measure_memory.py [FAMILY ...]

Of each family's `flow_grpo` recipe, or its only one, in GiB a sample, without and with gradient checkpointing: a table
for docs/recipes.md. No GPU and no weights are needed (see scripts/measuring/live_memory.py); a minute or two a family.
"""

import argparse
from pathlib import Path

from measuring.live_memory import blocks_of, call_bytes, whole_bytes

from diffrl.config import load_config
from diffrl.cost.plan import make_plan

ROOT = Path(__file__).parent.parent
FAMILIES = ("sd3", "flux", "sana", "wan", "qwen_image", "z_image", "flux2_klein", "wan_i2v")
RECIPES = {"wan_i2v": "diffrl"}
SAMPLES = 2


def compared(family: str, checkpointing: bool) -> dict[str, tuple[int, int]]:
    """Bytes of `SAMPLES` samples, measured and planned, of an update and of a network call without gradient."""
    same = [f"train.micro_batch={SAMPLES}", f"rollout.micro_batch={SAMPLES}", "objective={kind: grpo, kl: 0.0}"]
    recipe = ROOT / f"configs/{family}/{RECIPES.get(family, 'flow_grpo')}.yaml"
    config = load_config(recipe, [*same, f"train.gradient_checkpointing={str(checkpointing).lower()}"])
    two, scale = dict.fromkeys(blocks_of(config), 2), config.rollout.guidance_scale
    planned = make_plan(config, config.prompts.per_iteration).memory.passing
    return {
        "update": (whole_bytes(config, SAMPLES), planned["update"]),
        "forward": (call_bytes(config, two, SAMPLES, scale, trained=False), planned["rollout"]),
    }


def cells(pair: tuple[int, int]) -> str:
    """Measured, planned, and how far the plan is off."""
    measured, planned = pair
    each = (f"{size / SAMPLES / 2**30:.2f}" for size in pair)
    return f"{' | '.join(each)} | {planned / measured - 1:+.0%}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=FAMILIES, metavar="FAMILY")
    for family in parser.parse_args().families:
        plain, less = (compared(family, checkpointing) for checkpointing in (False, True))
        row = (cells(pair) for pair in (plain["update"], less["update"], plain["forward"]))
        print(f"| `{family}` | {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
