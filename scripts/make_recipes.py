"""Write into the header of every real-size recipe what `diffrl plan` expects of its memory.

    python scripts/make_recipes.py [--check]

Recipes are configs/FAMILY/*.yaml of the families below; the rest of each file is written by hand. With --check nothing
is written, and the exit code is 1 if a header is out of date.
"""

import argparse
import re
import sys
from pathlib import Path

from diffrl.config import load_config
from diffrl.cost.plan import make_plan, size_text

ROOT = Path(__file__).parent.parent
FAMILIES = ("sd3", "flux", "sana", "wan", "qwen_image", "z_image", "flux2_klein", "flux_kontext", "wan_i2v")
HEADER = re.compile(r"^# Memory: about (.+) a process \(diffrl plan --processes (\d+)\)\.$", re.MULTILINE)


def recipes() -> list[Path]:
    """Every real-size recipe."""
    return [path for family in FAMILIES for path in sorted((ROOT / "configs" / family).glob("*.yaml"))]


def expected(path: Path, processes: int) -> str:
    """A recipe's memory per process, as `diffrl plan` prints it.

    Raises:
        ValueError: there is no estimate.
    """
    memory = make_plan(load_config(path), processes).memory
    if memory is None:
        raise ValueError(f"{path}: the memory of this model is not known")
    return size_text(memory.peak)


def stated(path: Path) -> tuple[str, int]:
    """The memory in a recipe's header, and the number of processes that it is for.

    Raises:
        ValueError: there is none, or more than one.
    """
    found = HEADER.findall(path.read_text(encoding="utf-8"))
    if len(found) != 1:
        raise ValueError(f"{path}: the header must hold one line like '{HEADER.pattern}'")
    size, processes = found[0]
    return size, int(processes)


def refresh(path: Path) -> bool:
    """Bring a header up to date; whether it had to change."""
    before = path.read_text(encoding="utf-8")
    size = expected(path, stated(path)[1])
    after = HEADER.sub(lambda line: f"# Memory: about {size} a process (diffrl plan --processes {line[2]}).", before)
    path.write_text(after, encoding="utf-8")
    return after != before


def main() -> None:
    """Refresh all headers, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    old = 0
    for path in recipes():
        changed = stated(path)[0] != expected(path, stated(path)[1]) if check else refresh(path)
        old += changed
        if changed:
            print(f"{path.relative_to(ROOT)}: {'out of date' if check else stated(path)[0]}")
    sys.exit(1 if check and old else 0)


if __name__ == "__main__":
    main()
