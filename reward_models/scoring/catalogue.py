"""What there is, and whether it works: `rewards list`, `rewards check` and `rewards self-test`."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from reward_models.base import EXTRAS, ScorerSpec
from reward_models.common.errors import RewardError
from reward_models.contract import check_scorer
from reward_models.functions import FunctionReward
from reward_models.registry import SCORERS, factory_of
from reward_models.scoring.choices import Loaded
from reward_models.self_test import self_test

NARROW = 140
"""Columns that the table needs."""


@dataclass(frozen=True)
class Entry:
    """A registered reward: its spec, or why it cannot be imported; `install` is what is still to be installed."""

    name: str
    spec: ScorerSpec | None
    problem: str | None
    install: str | None


def entries() -> list[Entry]:
    """Return all registered rewards, also those that cannot be imported here."""
    return [entry_of(name) for name in sorted(SCORERS)]


def entry_of(name: str) -> Entry:
    """Return a registered reward, or one of your own by its path."""
    try:
        spec = factory_of(name).spec
    except RewardError as error:
        return Entry(name, None, str(error), _extra_of(error.__cause__))
    except AttributeError:
        return Entry(name, None, f"{name} is no scorer: it has no `spec`.", None)
    missing = spec.extra is not None and any(not _is_installed(module) for module in EXTRAS[spec.extra])
    return Entry(name, spec, None, f"diffrl[{spec.extra}]" if missing else None)


def _is_installed(module: str) -> bool:
    return importlib.util.find_spec(module) is not None


def _extra_of(cause: BaseException | None) -> str | None:
    """Return what to install for a module that an import did not find."""
    module = (getattr(cause, "name", None) or "").partition(".")[0]
    extra = next((extra for extra, modules in EXTRAS.items() if module in modules), None)
    return f"diffrl[{extra}]" if extra else None


def entries_as_json() -> list[dict[str, Any]]:
    """Return the list for machines; an unbounded range ends in null."""
    return [
        {"name": entry.name, "problem": entry.problem, "install": entry.install}
        | (entry.spec.as_json() if entry.spec is not None else {})
        for entry in entries()
    ]


def show_entries(console: Console) -> None:
    """Print the list: a table, or on a narrow terminal two lines a reward."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("reward", style="bold", no_wrap=True)
    for column in ("media", "needs", "range", "install"):
        table.add_column(column, no_wrap=True)
    table.add_column("what it measures")
    narrow = console.width < NARROW
    for entry in entries():
        install = Text(f"pip install '{entry.install}'" if entry.install else "", style="yellow")
        facts = _facts(entry.spec) if entry.spec is not None else ("", "", "")
        description = Text(entry.spec.description) if entry.spec is not None else Text(entry.problem or "", style="red")
        if narrow:
            line = Text.assemble((entry.name, "bold"), "  ", ("; ".join(filter(None, facts)), "dim"), "  ", install)
            console.print(line)
            console.print(Padding(description, (0, 0, 0, 2)))
        else:
            table.add_row(entry.name, *facts, install, description)
    if not narrow:
        console.print(table)


def _facts(spec: ScorerSpec) -> tuple[str, str, str]:
    """Return media, needs and range of a reward, in words."""
    low, high = (f"{value:g}" for value in spec.range)
    span = "unbounded" if low == "-inf" and high == "inf" else f"{low} to {high}"
    return ", ".join(spec.media), ", ".join(spec.needs), span + ("" if spec.higher_is_better else ", lower is better")


def show_self_test(reward: Loaded, console: Console) -> bool:
    """Score pairs of known order and print them; whether all is well."""
    result = self_test(reward.scorer)
    higher = reward.scorer.spec.higher_is_better
    table = Table(title=Text(f"Self-test of {reward.label}"), title_justify="left", box=None, pad_edge=False)
    table.add_column("the right sample is right because")
    for column in ("right", "wrong", ""):
        table.add_column(column, justify="right")
    for why, good, bad in result.scores:
        won = good > bad if higher else good < bad
        table.add_row(Text(why), f"{good:.5g}", f"{bad:.5g}", Text("ok" if won else "LOST", "green" if won else "red"))
    console.print(table)
    return _verdict("self-test", reward, result.passed, list(result.problems), console)


def show_check(reward: Loaded, console: Console) -> bool:
    """Hold a scorer against the contract and print what is wrong; whether all is well."""
    problems = check_scorer(reward.scorer)
    if isinstance(reward.scorer, FunctionReward):
        console.print(Text(reward.scorer.spec.description), soft_wrap=True)
    return _verdict("contract", reward, not problems, problems, console)


def _verdict(what: str, reward: Loaded, passed: bool, problems: list[str], console: Console) -> bool:
    for problem in problems:
        console.print(Text(f"- {problem}"), soft_wrap=True)
    verdict = Text("PASS" if passed else "FAIL", style="bold green" if passed else "bold red")
    console.print(verdict.append(f" {what} of {reward.label}", style="default"), soft_wrap=True)
    return passed
