"""Hundreds of wrong inputs of every command, each tried in a process of its own, with what diffrl answers.

    python -m tests.attacks.wrong_inputs                    # all; prints faults and counts
    python -m tests.attacks.wrong_inputs --show score       # those with this word in them, and every answer, to be read
    setpriv --bounding-set=-dac_override,-dac_read_search --inh-caps=-all python -m tests.attacks.wrong_inputs
                                                      # as root, who may read anything: without that right

Each must end with exit code 2, or the one that its command documents, in a sentence and without a traceback, and leave
every file as it was. The table is `tests/attacks/wrong_commands.py`; whether a sentence is a good one, a person
judges. Takes two to three minutes; the exit status is 1 if there is a fault.
"""

from __future__ import annotations

import argparse
import copy
import os
import re
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "HF_HUB_OFFLINE": "1",
    "WANDB_MODE": "offline",
    "COLUMNS": "120",
    "NO_COLOR": "1",
}

from tests.attacks import configurations, wrong_commands, wrong_files  # noqa: E402
from tests.attacks.findings import FLOOD, Finding, table  # noqa: E402
from tests.attacks.trial import MARK, Ended, Send, command, isolated, warm  # noqa: E402
from tests.attacks.wrong_commands import WrongInput  # noqa: E402

SUBJECT = "wrong inputs"
BESIDE = (".lock", "-shm", "-wal")
"""Files that reading a run leaves: a lock, and the database's own."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Try the lines of the table; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="only lines with all of these in them")
    parser.add_argument("--show", action="store_true", help="print every answer")
    options = parser.parse_args(arguments)
    os.environ.update(ENVIRONMENT)
    chosen = [one for one in wrong_commands.wrong_inputs() if all(word in one.line for word in options.words)]
    with tempfile.TemporaryDirectory(prefix="diffrl-wrong-") as made, prepared(Path(made)) as folder:
        findings = [finding for one in chosen for finding in attempt(one, folder, options.show)]
    print(table(findings))
    return 1 if any(finding.failed for finding in findings) else 0


def attempt(one: WrongInput, folder: Path, show: bool) -> Iterator[Finding]:
    """Try a line; what is wrong with the answer is printed."""
    if "sealed" in one.line and os.access(folder / "sealed", os.R_OK):
        return
    before, start = contents(folder), time.monotonic()
    ended = isolated(_command, folder, one.words)
    outcome, detail = judge(ended, one.code, changes(before, contents(folder)))
    finding = Finding(SUBJECT, 0, 0, outcome, one.line, detail, time.monotonic() - start)
    if show or finding.failed:
        print(f"\n$ diffrl {one.line}   [{outcome} {finding.seconds:.1f} s]\n{detail}", flush=True)
    yield finding


def judge(ended: Ended, code: int, changed: Sequence[str]) -> tuple[str, str]:
    """Outcome and what was seen of one line."""
    said, found = ended.output.strip(), ended.last("code")
    if ended.hangs:
        return "hang", configurations.where(said)
    if MARK in said or isinstance(found, str):
        return "traceback", said[-4000:]
    if found != code:
        return "answer", f"exit code {found}, not {code}\n{said[-3000:]}"
    if not re.search(r"^(error|Error|Usage|│|FAIL )|failed for", said, re.MULTILINE):
        return "no sentence", said
    if len(said) > FLOOD:
        return "flood", said[:3000]
    if changed:
        return "lost", f"changed: {', '.join(changed)}\n{said}"
    return "refused", said


def contents(folder: Path) -> dict[str, tuple[int, int]]:
    """Size and time of every file, and the folders, of what is not the output of trials."""
    return {
        str(path.relative_to(folder)): (path.stat().st_size, path.stat().st_mtime_ns) if path.is_file() else (0, 0)
        for path in folder.rglob("*")
        if "__pycache__" not in path.parts and not path.name.endswith(BESIDE)
    }


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names of what is new, gone or other."""
    return sorted(name for name in before.keys() | after.keys() if before.get(name) != after.get(name))


@contextmanager
def prepared(place: Path) -> Iterator[Path]:
    """Import what trials need, and make the files and runs that the lines name."""
    warm()
    folder = place / "here"
    files_in(folder)
    for extra in (["run.name=done"], ["run.name=lora", "model.lora={rank: 2, alpha: 2}"]):
        ended = isolated(_command, folder, ["train", "good.yaml", *extra], seconds=600)
        if ended.last("code") != 0:
            raise RuntimeError(f"The run that lines name could not be made:\n{ended.output[-3000:]}")
    wrong_files.damage_runs(folder)
    yield folder
    for path in ("sealed", "sealed.txt", "sealed.yaml"):
        (folder / path).chmod(0o700)


def files_in(folder: Path) -> None:
    """Make the folder with all files that lines name, but for runs."""
    folder.mkdir()
    good, chains = (copy.deepcopy(configurations.base(name)) for name in ("quickstart.yaml", "tiny-sd3/flow_grpo.yaml"))
    good["run"]["name"], chains["run"]["name"] = "new", "chains"
    wrong_files.make_files(folder, good, chains, ROOT / "assets/tiny-sd3")


def _command(send: Send, words: list[str]) -> None:
    sys.argv[0] = "diffrl"
    send(("code", command(words)))


if __name__ == "__main__":
    sys.exit(main())
