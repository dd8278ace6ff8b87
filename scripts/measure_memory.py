"""What a trained and an untrained network call hold at most, measured on fake tensors, beside what `diffrl plan` says.

    python scripts/measure_memory.py [FAMILY ...]

Of each family's `flow_grpo` recipe, or its only one, in GiB a sample, without and with gradient checkpointing: a table
for docs/recipes.md. A plan more than 5 % off is an error. No GPU and no weights are needed (see
scripts/measuring/live_memory.py); a minute or two a family.
"""

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(Path(__file__).resolve().parent)]

from measuring.live_memory import blocks_of, call_bytes, whole_bytes  # noqa: E402

from diffrl.config import load_config  # noqa: E402
from diffrl.cost.plan import make_plan  # noqa: E402

FAMILIES = ("sd3", "flux", "sana", "wan", "hunyuan_video", "qwen_image", "z_image", "flux2_klein")
RECIPES = dict.fromkeys(FAMILIES, "flow_grpo") | dict.fromkeys(("wan_i2v", "qwen_image_edit"), "diffrl")
SAMPLES = 2
CLOSE = 0.05


def compared(family: str, checkpointing: bool) -> dict[str, tuple[int, int]]:
    """Bytes of `SAMPLES` samples, measured and planned, of an update and of a network call without gradient."""
    same = [f"train.micro_batch={SAMPLES}", f"rollout.micro_batch={SAMPLES}", "objective={kind: grpo, kl: 0.0}"]
    recipe = ROOT / f"configs/{family}/{RECIPES[family]}.yaml"
    config = load_config(recipe, [*same, f"train.gradient_checkpointing={str(checkpointing).lower()}"])
    two, scale = dict.fromkeys(blocks_of(config), 2), config.rollout.guidance_scale
    planned = make_plan(config, config.prompts.per_iteration).memory.passing
    return {
        "update": (whole_bytes(config, SAMPLES), planned["update"]),
        "forward": (call_bytes(config, two, SAMPLES, scale, trained=False), planned["rollout"]),
    }


def compared_whole() -> tuple[int, int]:
    """Bytes of `SAMPLES` samples of an update that trains all of FLUX.1 on one process, measured and planned.

    Most are autocast's copies of the weights.
    """
    changed = ["objective={kind: grpo, kl: 0.0}", f"train.micro_batch={SAMPLES}", "train.sharding=none"]
    config = load_config(ROOT / "configs/flux/dance_grpo.yaml", changed)
    memory = make_plan(config, config.prompts.per_iteration).memory
    return whole_bytes(config, SAMPLES), memory.passing["update"]


def cells(pair: tuple[int, int]) -> str:
    """Measured, planned, and how far the plan is off."""
    measured, planned = pair
    each = (f"{size / SAMPLES / 2**30:.2f}" for size in pair)
    return f"{' | '.join(each)} | {planned / measured - 1:+.0%}"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("families", nargs="*", default=RECIPES, metavar="FAMILY")
    off = []
    for family in parser.parse_args().families:
        plain, less = (compared(family, checkpointing) for checkpointing in (False, True))
        pairs = (plain["update"], less["update"], plain["forward"])
        print(f"| `{family}` | {' | '.join(map(cells, pairs))} |", flush=True)
        off += [family for measured, planned in pairs if abs(planned / measured - 1) > CLOSE]
    if off:
        sys.exit(f"Plans more than {CLOSE:.0%} off: {', '.join(dict.fromkeys(off))}")


if __name__ == "__main__":
    main()
