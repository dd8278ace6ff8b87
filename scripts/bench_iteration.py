"""Where the seconds and the bytes of a training iteration go, and whether another revision is faster.

    python scripts/bench_iteration.py [--configs configs/quickstart.yaml ...] [--threads 1] [--out iteration.json]
    python scripts/bench_iteration.py --against main      # the same in a git worktree of main, by turns

    python scripts/bench_iteration.py --history 150       # is bookkeeping as fast at its end as early?

One table: CPU and wall seconds by phase, the network's operations in a phase as a share of what this machine's matrix
products do in as many CPU seconds, bytes stored for a sample's stochastic step (and how many float32 latents these
are), and what one step makes the host wait for on a CUDA device that is not there (`measuring.fake_cuda`; nothing of it
has run on a GPU). Each turn is a process of its own, with one iteration to warm up; numbers are medians of the turns.
With --against the revisions take turns, and a ratio is the median over the turns of other / this: above 1 this is
better. On a machine that does other work too, CPU seconds tell more than wall seconds. With --history the exit code is
1 where "other" of the last iterations is above 1.2 of that of the tenth.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benching import markdown, ratio, take_turns, write_json

ROOT = Path(__file__).parents[1]
CONFIGS = ("configs/quickstart.yaml", "configs/tiny-sd3/flow_grpo.yaml")
HERE, THERE = "this", "other"
MOST_GROWTH = 1.2
"""Of the seconds beside the phases of an iteration, from the tenth to the last: nothing may depend on the history."""

Rows = Mapping[str, Mapping[str, Mapping[str, float]]]
"""By run and by what it is about, numbers by their names."""


def main() -> None:
    """Measure, print one table, write JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--configs", nargs="+", default=list(CONFIGS), metavar="CONFIG")
    parser.add_argument("--set", nargs="*", default=[], metavar="a.b=c", help="Changes to all configurations.")
    parser.add_argument("--iterations", type=int, default=3, help="Of a turn, after one to warm up.")
    parser.add_argument("--turns", type=int, default=3, help="Processes of each revision.")
    parser.add_argument("--threads", type=int, default=1, help="Of torch.")
    parser.add_argument(
        "--family",
        default="sd3",
        help="Published model whose steps are counted (sd3 flux sana wan), or none: old revisions cannot be counted.",
    )
    parser.add_argument("--against", metavar="REV", help="A git revision to compare with.")
    parser.add_argument("--history", type=int, metavar="N", help="Train N iterations, at least 30, and compare.")
    parser.add_argument("--out", type=Path, help="Also write JSON here.")
    parser.add_argument("--turn", action="store_true", help=argparse.SUPPRESS)  # one process: measure and print JSON
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)  # this turn counts waits too
    arguments = parser.parse_args()
    for name in ("iterations", "turns", "threads"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} must be at least 1. Got {getattr(arguments, name)}. Raise it.")
    if arguments.history is not None:
        if arguments.history < 30:
            parser.error(f"--history must be at least 30. Got {arguments.history}. Raise it.")
        sys.exit(show_history(arguments))
    if arguments.turn:
        print(json.dumps(measure(arguments)))
        return
    try:
        with revision(arguments.against) as other:
            trees = {HERE: ROOT} | ({THERE: other} if other else {})
            turns = measure_trees(trees, arguments)
    except subprocess.CalledProcessError as error:
        parser.error(error.stderr.strip().split("\n")[-1])
    except ValueError as error:
        parser.error(str(error))
    table = summarise(turns)
    print(f"{arguments.turns} turns of {arguments.iterations} iterations, {arguments.threads} thread(s)\n")
    columns = ("run", "what", "number", *trees, *(["ratio"] if arguments.against else []))
    cells = [[row.get(column, "") for column in columns] for row in table]
    print(markdown(columns, [[f"{c:,.4g}" if isinstance(c, float) else c for c in row] for row in cells]))
    write_json(arguments.out, turns=turns, table=table)


def measure(arguments: argparse.Namespace) -> Rows:
    """Return one process's numbers, of whichever diffrl it imports."""
    import torch
    from measuring.iteration import measure_run

    torch.set_num_threads(arguments.threads)
    rows = {Path(path).stem: measure_run(path, arguments.set, arguments.iterations) for path in arguments.configs}
    if not arguments.count:
        return rows
    from measuring.fake_cuda import waits_of_steps

    return rows | {f"{arguments.family} on CUDA": waits_of_steps(arguments.family)}


def show_history(arguments: argparse.Namespace) -> int:
    """Print what bookkeeping takes early and late in a run of each configuration; 1 if one grows too much."""
    import torch
    from measuring.iteration import measure_history

    torch.set_num_threads(arguments.threads)
    grown = 0
    for path in arguments.configs:
        seconds = measure_history(path, arguments.set, arguments.history)
        grown |= seconds["ratio"] > MOST_GROWTH
        print(f"{path}: other {seconds['early']:.4f} s at iteration 10, {seconds['late']:.4f} s at the end, "
              f"{seconds['ratio']:.2f} of it (at most {MOST_GROWTH:g})")  # fmt: skip
    return int(grown)


@contextmanager
def revision(name: str | None) -> Iterator[Path | None]:
    """Yield a worktree of a git revision for as long as it is needed; None for None.

    Raises:
        ValueError: git does not know the revision.
    """
    if name is None:
        yield None
        return
    with TemporaryDirectory() as folder:
        tree = Path(folder) / "other"
        try:
            git("worktree", "add", "--detach", str(tree), name)
        except subprocess.CalledProcessError as error:
            why = error.stderr.strip().split("\n")[-1]
            raise ValueError(f"--against must name a revision that git can check out. Got {name} ({why}).") from error
        try:
            yield tree
        finally:
            git("worktree", "remove", "--force", str(tree))


def git(*arguments: str) -> None:
    """Run git in this repository."""
    subprocess.run(["git", *arguments], cwd=ROOT, check=True, capture_output=True, text=True)


def measure_trees(trees: Mapping[str, Path], arguments: argparse.Namespace) -> dict[str, list[Rows]]:
    """Return the numbers of every turn of every tree."""
    # -P: nothing is imported from the folder that this runs in, or start-up of the other tree would be of this one
    passed = [sys.executable, "-P", __file__, "--turn", "--iterations", str(arguments.iterations)]
    passed += ["--threads", str(arguments.threads), "--family", arguments.family]
    counted = set() if arguments.family != "none" else set(trees)

    def turn(name: str) -> Rows:
        tree = trees[name]
        print(f"a turn of {name}", file=sys.stderr)
        path = os.pathsep.join((str(tree), str(ROOT / "scripts")))  # the measuring is this tree's for both
        environment = os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": str(arguments.threads)}
        configs = [str(tree / path) for path in arguments.configs]  # each revision has its own of that name
        command = [*passed, "--configs", *configs, "--set", *arguments.set, *(() if name in counted else ("--count",))]
        counted.add(name)
        done = subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
        return json.loads(done.stdout.splitlines()[-1])

    return take_turns({name: partial(turn, name) for name in trees}, arguments.turns, warm_up=False)


def summarise(turns: Mapping[str, Sequence[Rows]]) -> list[dict]:
    """Return medians over the turns, and over the turns' ratios where there are two trees; one row a number."""
    rows = []
    for run, named in turns[HERE][0].items():
        for what, numbers in named.items():
            for name in numbers:
                values = {tree: values_of(runs, run, what, name) for tree, runs in turns.items()}
                row = {"run": run, "what": what, "number": name, **{t: statistics.median(v) for t, v in values.items()}}
                if THERE in values and name != "share" and all(values[HERE]):
                    row["ratio"] = ratio(values[THERE], values[HERE])
                rows.append(row)
    return rows


def values_of(turns: Sequence[Rows], run: str, what: str, name: str) -> list[float]:
    """Return a number of every turn that has it; 0 where a tree has no such phase or wait."""
    return [turn[run].get(what, {}).get(name, 0) for turn in turns if run in turn]


if __name__ == "__main__":
    main()
