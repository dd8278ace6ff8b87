"""Measure what docs/results.md says: arms of equal cost on paired seeds, and the questions that they answer.

    python scripts/reproduce_results.py [--only shapes] [--out results] [--go-on] [--write docs/results.md]

Each group is one `diffrl compare`, so an interrupted measurement goes on where it stopped. `--keep` writes its numbers
to docs/measured/GROUP.jsonl, and `--go-on` begins with what lies there: only what is missing is trained. `--write` sets
tables and figures into the page between its markers. With `--report-only` nothing is trained. Every difference that is
asked about was chosen before it was measured; p-values are adjusted for the group's questions (Holm).

`--check` measures again from nothing, and holds every arm to the band of its kept numbers: its mean must lie in the
95 % prediction interval for so many seeds (`--seeds 1`: a quick look, with wide bands).
"""

import argparse
import math
import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

from measuring.bands import strayed
from measuring.figure import draw_budgets
from measuring.groups import BUDGETS, GROUPS, GUIDED, POOLS, Group
from measuring.spaces import read_trials, trials_file
from measuring.tables import OVERVIEW, answers, budgets_table, fewer_tables, overview, pool_table, scores, searched
from rich.console import Console

from diffrl.display import markdown_table
from diffrl.errors import DiffrlError
from diffrl.studies.compare import CompareRequest, collect, compare, write_report
from diffrl.studies.compare.archive import pack, unpack
from diffrl.studies.compare.figures import draw_power
from diffrl.studies.compare.pairs import pairs_of
from diffrl.studies.compare.results import Comparison
from diffrl.studies.compare.tables import guidance_rows

MEASURED = Path("docs/measured")
FIRST_FIGURE = Path("assets/readme/comparison.png")
FIGURES = ("figure", "power")


def main() -> None:
    """Train, report, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results"), help="Directory of the comparisons.")
    parser.add_argument("--only", action="append", choices=GROUPS, help="A group; may be given several times.")
    parser.add_argument("--jobs", type=int, help="Runs at once. Default: one a core.")
    parser.add_argument("--go-on", action="store_true", help="Begin with the numbers in docs/measured.")
    parser.add_argument("--keep", action="store_true", help="Write the numbers to docs/measured.")
    parser.add_argument("--report-only", action="store_true", help="Train nothing.")
    parser.add_argument("--check", action="store_true", help="Hold what is measured to the bands of docs/measured.")
    parser.add_argument("--seeds", type=int, help="Of each arm, at most. Default: what each group names.")
    parser.add_argument("--write", type=Path, help="The page whose tables are replaced.")
    arguments = parser.parse_args()
    if arguments.check and arguments.go_on:
        parser.error("--check is of runs that were trained anew. Leave --go-on out.")
    if arguments.seeds is not None and arguments.seeds < 1:
        parser.error(f"--seeds must be at least 1. Got {arguments.seeds}.")
    try:
        outside = measure(arguments)
    except DiffrlError as error:
        parser.error(str(error))
    if outside:
        sys.exit("\n".join(outside))


def measure(arguments: argparse.Namespace) -> list[str]:
    """Do what the command line asks for; returns the arms that lie outside of their bands."""
    asked = list(arguments.only or GROUPS)
    if arguments.write:
        require_room(arguments.write, asked)
    if arguments.go_on:
        for name in {*asked, *(other for one in asked for other in beside(one))}:
            kept, out = MEASURED / f"{name}.jsonl", arguments.out / name
            if kept.is_file() and not out.exists():
                unpack(kept, out)
    outside = []
    for name in asked:
        out, kept, group = arguments.out / name, MEASURED / f"{name}.jsonl", GROUPS[name]
        if not arguments.report_only:
            compare(request(group, out, arguments.jobs, arguments.seeds), Console())
        comparison = collect(out)
        report(name, group, comparison, out, arguments.write)
        if arguments.check:
            outside += [f"{name}: {line}" for line in strayed(comparison, kept)]
        if arguments.keep:
            pack(out, kept)
    if arguments.write:
        for table in dict.fromkeys(table for name in asked for table in shared_tables(name)):
            put(arguments.write, table, shared(table, arguments.out))
        draw_first_figure(arguments.out)
    return outside


def draw_first_figure(out: Path) -> None:
    """Draw README's first figure, where the groups of both worlds are at hand."""
    if all((out / name).is_dir() for names in BUDGETS.values() for name in names):
        draw_budgets({world: by_budget(world, out) for world in BUDGETS}, GUIDED, FIRST_FIGURE)


def by_budget(world: str, out: Path) -> dict[int, Comparison]:
    """Return what was measured of a world's methods, tuned alike, by evaluations of training."""
    return {GROUPS[name].budget: collect(out / name) for name in BUDGETS[world] if (out / name).is_dir()}


def tables() -> dict[str, list[str]]:
    """Return the tables that several groups share, and their groups."""
    columns = [name for names in OVERVIEW.values() for name in names]
    return {
        "searched-guided-shapes": ["tuned-guided-shapes"],
        "searched-plain-shapes": ["tuned-plain-shapes"],
        "searched-plain-words": ["tuned-plain-words"],
        "searched-plain-shapes-60k": ["tuned-60k-shapes"],
        "overview": columns,
        "pools": list(POOLS),
        **{f"budgets-{world}": list(names) for world, names in BUDGETS.items()},
    }


def beside(name: str) -> set[str]:
    """Return the groups that share a table with one, itself among them."""
    return {name}.union(*(names for names in tables().values() if name in names))


def shared_tables(name: str) -> list[str]:
    """Return the tables that a group shares with others."""
    return [table for table, names in tables().items() if name in names]


def shared(table: str, out: Path) -> str:
    """Return a table over several groups, as far as they have been measured; empty where that tells nothing."""
    kind, _, world = table.partition("-")
    if kind == "searched":
        regime, world, *budget = world.split("-")
        trials = [trials_file(world, regime, 1000 * int(one.removesuffix("k"))) for one in budget]
        return searched(read_trials(*trials or [trials_file(world, regime)]))
    if kind == "overview":
        asked = [name for names in OVERVIEW.values() for name in names if (out / name).is_dir()]
        return overview({name: collect(out / name) for name in asked}, GUIDED) if asked else ""
    if kind == "pools":
        return pool_table({price: collect(out / name) for name, price in POOLS.items() if (out / name).is_dir()})
    comparisons = by_budget(world, out)
    return f"{budgets_table(comparisons)}\n{fewer_tables(comparisons)}" if len(comparisons) > 1 else ""


def request(group: Group, out: Path, jobs: int | None, seeds: int | None = None) -> CompareRequest:
    """Return what a group asks of `diffrl compare`."""
    arms = [f"{label}: {settings}" for label, settings in group.arms.items()]
    return CompareRequest(
        out,
        configs=arms,
        budget=f"evaluations={group.budget}",
        seeds=min(group.seeds, seeds or group.seeds),
        evals=group.evals,
        jobs=jobs,
        prices=group.prices,
        guidance=list(group.guidance),
        own_noise=group.own_noise,
    )


def report(name: str, group: Group, comparison: Comparison, out: Path, page: Path | None) -> None:
    """Write a group's tables and figures, what so many seeds can see among them, and set them into the page."""
    write_report(comparison, out, target=0.4)
    asked = [pair for pairs in group.questions.values() for pair in pairs]
    known = [p.difference.sd for p in pairs_of(comparison, asked) if p.difference.sd]
    if known:
        middle = math.sqrt(sum(sd * sd for sd in known) / len(known))
        draw_power(middle, len(comparison.arms[0].runs), out / "power.png", comparison.metric)
    if page is None or name in POOLS:
        return
    tables = [scores(comparison), answers(group, comparison)]
    if group.guidance:
        tables.insert(1, f"{markdown_table(guidance_rows(comparison))}\n")
    put(page, name, "\n".join(tables))
    shown = page.read_text(encoding="utf-8")
    for figure in FIGURES:
        made, target = out / f"{figure}.png", page.parent / "figures" / f"{name}-{figure}.png"
        if made.is_file() and f"](figures/{target.name})" in shown:
            target.parent.mkdir(exist_ok=True)
            shutil.copyfile(made, target)


def require_room(page: Path, names: Iterable[str]) -> None:
    """Refuse a page that lacks the markers of a group's tables, before anything is trained for it."""
    text = page.read_text(encoding="utf-8")
    trained = [name for name in names if name not in POOLS]
    for marker in dict.fromkeys([*trained, *(table for name in names for table in shared_tables(name))]):
        if not _between(marker).search(text):
            raise SystemExit(f"{page} must hold <!-- {marker} --> and <!-- /{marker} -->. Add both lines.")


def _between(name: str) -> re.Pattern[str]:
    return re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)


def put(page: Path, name: str, table: str) -> None:
    """Set a table into the page between its markers."""
    text = page.read_text(encoding="utf-8")
    page.write_text(_between(name).sub(lambda match: match[1] + table + match[2], text), encoding="utf-8")


if __name__ == "__main__":
    main()
