"""Count product lines by room, and the mission's share of them: `python scripts/lines.py [REV]`.

Counted are all lines of tracked .py, .js, .css and .html files of diffrl/, reward_models/ and scripts/, without
vendored ones; tests stand apart. The mission is what carries a prompt to an update: the stations of training, the
trees, the mathematics, models and precision, and the scorers themselves.
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
SUFFIXES = {".py", ".js", ".css", ".html"}


def git(*arguments: str) -> bytes:
    """Return what a git command prints."""
    return subprocess.run(["git", *arguments], check=True, capture_output=True).stdout


def lines_by_room(revision: str) -> Counter[str]:
    """Count lines of each room (`diffrl/models`, `scripts`, `tests`, ...) at a revision."""
    counts: Counter[str] = Counter()
    for name in git("ls-tree", "-r", "--name-only", revision, *PRODUCT, "tests").decode().splitlines():
        path = PurePosixPath(name)
        if path.suffix not in SUFFIXES or "vendor" in path.parts:
            continue
        nested = len(path.parts) > 2 and path.parts[0] in ("diffrl", "reward_models")
        counts["/".join(path.parts[:2]) if nested else path.parts[0]] += git("show", f"{revision}:{name}").count(b"\n")
    return counts


def main(revision: str = "HEAD") -> None:
    """Print the table."""
    counts = lines_by_room(revision)
    tests = counts.pop("tests", 0)
    total = sum(counts.values())
    for room, lines in sorted(counts.items()):
        print(f"{room:28}{lines:7,}{'  mission' if room in MISSION else ''}")
    mission = sum(lines for room, lines in counts.items() if room in MISSION)
    print(f"{'product':28}{total:7,}\n{'mission':28}{mission:7,}  {mission / total:.1%}\n{'tests':28}{tests:7,}")


if __name__ == "__main__":
    main(*sys.argv[1:])
