"""Count product lines by room, and the mission's share of them: `python scripts/lines.py [REV]`.

Counted are all lines of tracked .py, .js, .css and .html files of diffrl/, reward_models/ and scripts/, without
vendored ones. Tests stand apart, and so do the tables of which recipes are made. The mission is what carries a prompt
to an update: the stations of training, the trees, the mathematics, models and precision, and the scorers themselves.
"""

import subprocess
import sys
from collections import Counter
from pathlib import PurePosixPath

PRODUCT = ("diffrl", "reward_models", "scripts")
STATIONS = ("credit", "data", "distributed", "functional", "models", "objectives", "precision", "rewards", "rollout")
MISSION = {
    *(f"diffrl/{room}" for room in (*STATIONS, "training", "trees")),
    *(f"reward_models/{room}" for room in ("images", "judges", "text", "videos")),
}
RECIPES = "configs/src"
SUFFIXES = {".py", ".js", ".css", ".html"}


def lines_by_room(revision: str) -> Counter[str]:
    """Count lines of each room (`diffrl/models`, `scripts`, `tests`, `configs/src`, ...) at a revision."""
    command = ["git", "grep", "--count", "-I", "", revision, "--", *PRODUCT, "tests", RECIPES]
    counts: Counter[str] = Counter()
    for line in subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines():
        name, _, lines = line.removeprefix(f"{revision}:").rpartition(":")
        path = PurePosixPath(name)
        if path.is_relative_to(RECIPES):
            counts[RECIPES] += int(lines)
        elif path.suffix in SUFFIXES and "vendor" not in path.parts:
            nested = len(path.parts) > 2 and path.parts[0] in ("diffrl", "reward_models")
            counts["/".join(path.parts[:2]) if nested else path.parts[0]] += int(lines)
    return counts


def main(revision: str = "HEAD") -> None:
    """Print the table."""
    counts = lines_by_room(revision)
    tests, recipes = counts.pop("tests", 0), counts.pop(RECIPES, 0)
    total = sum(counts.values())
    for room, lines in sorted(counts.items()):
        print(f"{room:28}{lines:7,}{'  mission' if room in MISSION else ''}")
    mission = sum(lines for room, lines in counts.items() if room in MISSION)
    print(f"{'product':28}{total:7,}\n{'mission':28}{mission:7,}  {mission / total:.1%}")
    print(f"{'tests':28}{tests:7,}\n{'recipes (' + RECIPES + ')':28}{recipes:7,}")


if __name__ == "__main__":
    main(*sys.argv[1:])
