"""Wrong configurations as a user writes them, and whether what must not be is seen; attacks/wrong_inputs.py has all."""

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tests.attacks import wrong_inputs
from tests.attacks.trial import Ended, command

FAST = ("the command itself", "which configuration", "keys and values of a configuration")
"""Parts of the table whose lines, but for a few, end before anything heavy is imported, and need no run.

Every second one is typed here; what is wrong with a key or value is tested in tests/config.
"""
HEAVY = ("run.dir", "model.path", "to_nothing", "runs/done", "sealed")


def test_a_wrong_configuration_is_a_sentence_and_changes_nothing(tmp_path, monkeypatch):
    wrong_inputs.files_in(tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    for name in ("sealed", "sealed.txt", "sealed.yaml"):
        Path(name).chmod(0o700)  # the folder can be removed
    lines = [one for one in wrong_inputs.wrong_commands.wrong_inputs() if one.about in FAST]
    lines = [one for one in lines if not any(word in one.line for word in HEAVY)][::2]
    assert len(lines) > 45
    before, outcomes = wrong_inputs.contents(Path()), {}
    for one in lines:
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(out):
            code = command(one.words)
        changed = wrong_inputs.changes(before, wrong_inputs.contents(Path()))
        outcomes[one.line] = wrong_inputs.judge(Ended(out.getvalue(), [("code", code)]), one.code, changed)
    assert not {line: found for line, found in outcomes.items() if found[0] != "refused"}


@pytest.mark.parametrize(
    ("said", "code", "changed", "expected"),
    [
        ("error: run.name must be text. Got 3.", 2, [], "refused"),
        ("error: run.name must be text. Got 3.", 0, [], "answer"),
        ("Traceback (most recent call last)\nValueError: 3", 2, [], "traceback"),
        ("it went wrong", 2, [], "no sentence"),
        ("error: " + "k" * 100_000, 2, [], "flood"),
        ("error: run.name must be text. Got 3.", 2, ["good.yaml"], "lost"),
    ],
)
def test_what_must_not_be_is_seen(said, code, changed, expected):
    assert wrong_inputs.judge(Ended(said, [("code", code)]), 2, changed)[0] == expected
