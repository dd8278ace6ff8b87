"""The report: what is asked, what becomes of it, and that nothing which breaks in one row takes others with it."""

import json
import os

import pytest
import torch

from diffrl.doctor import command
from diffrl.doctor.command import DoctorRequest, examine
from diffrl.doctor.rows import Budget, Result, Row, answer
from diffrl.errors import ConfigError, NotHereError

CPU = torch.device("cpu")


def right(passed=True):
    return Result(passed, "3 of 4", {"share": 0.75})


def broken():
    raise RuntimeError("CUDA error: an illegal memory access was encountered\nand a trace")


def absent():
    raise NotHereError("needs a thing")


def die():
    os._exit(7)


def rows_of_all_kinds(device, budget):
    yield Row("right", "4 of 4", right)
    yield Row("wrong", "4 of 4", lambda: right(False))
    yield Row("broken", "4 of 4", broken)
    yield Row("absent", "4 of 4", absent)
    yield Row("late", "4 of 4", lambda: pytest.fail("it was started"), needs=1e9)


def rows_that_die(device, budget):
    yield Row("before", "4 of 4", right)
    yield Row("dying", "4 of 4", die)
    yield Row("after", "4 of 4", right)


def rows_that_cannot_be_made(device, budget):
    raise ValueError("no network")
    yield


def rows_after(device, budget):
    yield Row("still asked", "4 of 4", right)


def test_what_becomes_of_each_kind_of_row():
    budget = Budget(60)
    outcomes = {row.name: answer("any", row, budget) for row in rows_of_all_kinds(CPU, budget)}
    status = {name: outcome.status for name, outcome in outcomes.items()}
    expected = {"right": "pass", "wrong": "fail", "broken": "fail", "absent": "not here", "late": "not here"}
    assert status == expected
    assert outcomes["broken"].measured == "RuntimeError: CUDA error: an illegal memory access was encountered"
    assert outcomes["right"].facts == {"share": 0.75}
    *_, last = outcomes["broken"].facts["calls"]
    assert last.startswith("doctor/test_report.py:") and last.endswith(" broken")  # no folder above, which names people


@pytest.mark.long
def test_a_section_that_dies_ends_no_other_one(tmp_path, monkeypatch):
    """Sections run in processes of their own, and the row that killed its process is the one that failed."""
    here = "tests.doctor.test_report"
    sections = {
        "dies": f"{here}:rows_that_die",
        "odd": f"{here}:rows_that_cannot_be_made",
        "next": f"{here}:rows_after",
    }
    monkeypatch.setattr(command, "SECTIONS", {name: name for name in sections})
    monkeypatch.setattr(command, "TITLES", {name: name for name in sections})
    monkeypatch.setattr(
        command,
        "MAIN",
        ["-c", f"import sys; from diffrl.doctor import command; command.SECTIONS = {sections}; command.main()"],
    )
    said = []
    outcomes = examine(DoctorRequest(tmp_path / "out", gpu=False, minutes=2), said.append)
    status = {outcome.name: outcome.status for outcome in outcomes}
    assert status == {"before": "pass", "dying": "fail", "odd": "fail", "still asked": "pass"}
    report = json.loads((tmp_path / "out/doctor.json").read_text())
    assert [row["name"] for row in report["rows"]] == list(status) and report["machine"]["torch"] == torch.__version__
    page = (tmp_path / "out/doctor.md").read_text()
    assert page.index("What failed") < page.index("| before | pass |") and "ValueError: no network" in page
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == ["doctor.json", "doctor.md"]


def test_wrong_requests_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="--only must be one of parity"):
        examine(DoctorRequest(tmp_path / "new", only=["speeed"]), print)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ConfigError, match="--out must be a new or empty folder"):
        examine(DoctorRequest(tmp_path), print)
    if not torch.cuda.is_available():
        with pytest.raises(NotHereError, match="--gpu needs a CUDA device"):
            examine(DoctorRequest(tmp_path / "new", gpu=True), print)
    assert not (tmp_path / "new").exists()
