"""The command `diffrl doctor`: sections one after the other in processes of their own, one JSON and one page."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from diffrl.display import markdown_table
from diffrl.doctor.machine import describe
from diffrl.doctor.request import DoctorRequest
from diffrl.doctor.rows import LONGEST, RUNNING, Budget, Outcome, read_answers, write_answers
from diffrl.errors import ConfigError, NotHereError
from diffrl.files import require_empty
from diffrl.registry import resolve
from reward_models.common.messages import show

TITLES = {
    "parity": "The same numbers as on a CPU",
    "kernels": "Attention backends, quantised bases, optimisers",
    "precisions": "Precisions that explore",
    "life": "A run's life: killed, resumed, exported, shared",
    "iterations": "An iteration of published sizes",
    "speed": "Speed of published sizes",
}
SECTIONS = {name: f"diffrl.doctor.{name}:rows" for name in TITLES}
"""What is asked, in this order; each is a function that gives `Row`s."""
MAIN = ["-m", "diffrl.doctor.command"]
"""How the process of a section begins."""
GRACE = 60.0
"""Seconds that a section may take beyond its time, for the row that it had begun."""


def examine(request: DoctorRequest, tell: Callable[[str], None]) -> list[Outcome]:
    """Ask everything, and write doctor.json and doctor.md.

    Raises:
        ConfigError: no such section, or the folder is not empty.
        NotHereError: a CUDA device was asked for, and there is none.
    """
    sections = request.only or SECTIONS
    if unknown := sorted(set(sections) - SECTIONS.keys()):
        raise ConfigError(f"--only must be one of {', '.join(SECTIONS)}. Got {show(unknown)}.")
    require_empty(request.out, "--out", " Name another folder.")
    if request.gpu and not torch.cuda.is_available():
        raise NotHereError("--gpu needs a CUDA device. None was found. Leave it out to look at the CPU.")
    device = torch.device("cpu" if request.gpu is False or not torch.cuda.is_available() else "cuda")
    request.out.mkdir(parents=True, exist_ok=True)
    start, budget, outcomes = time.monotonic(), Budget(60 * request.minutes), []
    for section in sections:
        tell(TITLES[section])
        for outcome in _section(section, device, budget, request.out):
            outcomes.append(outcome)
            tell(f"  {outcome.status:<9} {outcome.name}: {outcome.measured}")
    report = {"machine": describe(device), "minutes": round((time.monotonic() - start) / 60, 1)}
    rows = [asdict(outcome) for outcome in outcomes]
    (request.out / "doctor.json").write_text(json.dumps({**report, "rows": rows}, indent=2) + "\n", encoding="utf-8")
    (request.out / "doctor.md").write_text(page(report, outcomes), encoding="utf-8")
    tell(f"{verdict(outcomes)} The report is in {request.out / 'doctor.md'} and doctor.json beside it.")
    return outcomes


def _section(section: str, device: torch.device, budget: Budget, out: Path) -> Iterator[Outcome]:
    """Ask a section in a process of its own, since a kernel that breaks its device would end all others with it."""
    file, log, limit = out / f".{section}.jsonl", out / f".{section}.log", max(0.0, budget.left)
    command = [sys.executable, *MAIN, section, device.type, str(limit), str(file)]
    shown, end = 0, time.monotonic() + limit + GRACE
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT)
        try:
            while process.poll() is None and time.monotonic() < end:
                time.sleep(0.2)
                answers = [outcome for outcome in read_answers(file) if outcome.measured != RUNNING]
                yield from answers[shown:]
                shown = len(answers)
        finally:
            process.kill()
            process.wait()
    answers = read_answers(file)
    yield from answers[shown:]
    if process.returncode and not any(outcome.measured == RUNNING for outcome in answers):
        lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
        yield Outcome(section, section, "fail", (lines or ["it said nothing"])[-1][:LONGEST], "its rows can be asked")
    file.unlink(missing_ok=True)
    log.unlink(missing_ok=True)


def verdict(outcomes: Sequence[Outcome]) -> str:
    """Say how many rows passed."""
    count = Counter(outcome.status for outcome in outcomes)
    failed = f"{count['fail']} failed" if count["fail"] else "none failed"
    return f"{count['pass']} rows passed, {failed}, {count['not here']} could not be asked here."


def page(report: dict[str, Any], outcomes: Sequence[Outcome]) -> str:
    """Write the report as Markdown: what failed first, then every section as a table."""
    machine = "; ".join(f"{name} {value}" for name, value in report["machine"].items() if value is not None)
    failed = [f"- **{o.section}, {o.name}**: {o.measured} (must be: {o.bound})" for o in outcomes if o.status == "fail"]
    lines = [
        "# diffrl doctor",
        "",
        f"{verdict(outcomes)} It took {report['minutes']} minutes.",
        "",
        f"Machine: {machine}.",
    ]
    lines += ["", "## What failed", "", *failed] if failed else []
    for section in dict.fromkeys(outcome.section for outcome in outcomes):
        rows = [
            {"row": o.name, "": o.status, "measured": o.measured, "must be": o.bound, "s": f"{o.seconds:.1f}"}
            for o in outcomes
            if o.section == section
        ]
        lines += ["", f"## {TITLES[section]}", "", markdown_table(rows, left=4)]
    return "\n".join([*lines, ""])


def main() -> None:
    """Ask one section: its name, the device's type, the seconds it has, the file of its answers."""
    section, device, seconds, file = sys.argv[1:]
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    rows = resolve("section", SECTIONS, section)
    write_answers(section, rows, torch.device(device), Budget(float(seconds)), Path(file))


if __name__ == "__main__":
    main()
