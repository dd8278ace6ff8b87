"""Count what the samples of every recipe hold, on fake tensors, and write it to assets/published/plans.

    python scripts/make_plans.py [--check] [FILE ...]

Recipes that are given are counted anew, else those that no file knows; files of architectures that no recipe has any
more are removed. With --check nothing is written, all that is given is counted (else one recipe of each family), and a
number that moved by more than 1 % is an error. No GPU and no weights are needed; some seconds a recipe.
"""

import argparse
import json
import sys
from pathlib import Path

from diffrl.bundled import bundled_root, recipes
from diffrl.config import Config, load_config
from diffrl.cost.activations import SHIPPED, Activations, architecture_digest, count, remember, settings_of
from diffrl.models.published import find_pipeline

FOLDER = bundled_root() / SHIPPED
CLOSE = 0.01


def known(config: Config) -> dict | None:
    """Return the numbers that are written of a recipe; None if there are none."""
    file = FOLDER / f"{architecture_digest(find_pipeline(config.model.path))}.json"
    plans = json.loads(file.read_text(encoding="utf-8"))["plans"] if file.is_file() else []
    return next((plan["activations"] for plan in plans if plan["settings"] == settings_of(config)), None)


def counted(config: Config) -> Activations:
    """Return the numbers of a recipe."""
    return count(config.model, find_pipeline(config.model.path), settings_of(config))


def flat(numbers: dict) -> list[float]:
    """Return all numbers in one list; of bytes those of two samples."""
    return [value[0] + 2 * value[1] if isinstance(value, list) else value for value in numbers.values()]


def strayed(config: Config) -> bool:
    """Return whether what is written is not what is counted."""
    before, now = known(config), json.loads(json.dumps(counted(config).to_json()))
    return before is None or any(abs(old - new) > CLOSE * new for old, new in zip(flat(before), flat(now), strict=True))


def main() -> None:
    """Write, or check."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE")
    parser.add_argument("--check", action="store_true")
    arguments = parser.parse_args()
    every = [load_config(file) for file in recipes().values()]
    some = [load_config(file) for file in arguments.files]
    if arguments.check:
        one_each = {config.model.family: config for config in every}
        moved = [config.run.name for config in some or one_each.values() if strayed(config)]
        sys.exit(f"Counted otherwise: {', '.join(moved)}. Run scripts/make_plans.py FILE." if moved else 0)
    for config in some or every:
        if some or known(config) is None:
            pipeline = find_pipeline(config.model.path)
            remember(FOLDER, architecture_digest(pipeline), config.model.path, settings_of(config), counted(config))
            print(config.run.name, flush=True)
    needed = {architecture_digest(find_pipeline(config.model.path)) for config in every}
    for file in FOLDER.glob("*.json"):
        if file.stem not in needed:
            file.unlink()


if __name__ == "__main__":
    main()
