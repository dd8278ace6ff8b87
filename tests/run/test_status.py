"""How a run stands is told by what lies there, whatever its process ended with."""

import fcntl
import json

import pytest

from diffrl.cli import main


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.yaml").write_text("run: {iterations: 3}\n")
    return folder


def status(run, capsys):
    with pytest.raises(SystemExit) as end:
        main(["status", str(run)])
    shown = capsys.readouterr()
    return end.value.code, shown.out + shown.err


def test_a_run_stands_as_its_files_say(run, capsys):
    assert status(run, capsys)[0] == 5
    (run / "metrics.jsonl").write_text('{"iteration": 2}\n{"itera')
    (run / "log.txt").write_text("Failed: ValueError: x\n")
    code, line = status(run, capsys)
    assert code == 3 and "2 of 3" in line and "ended by an error" in line
    (run / "log.txt").write_text("Failed: ValueError: x\nResumed after iteration 2.\n")
    code, line = status(run, capsys)
    assert code == 5 and "--resume" in line
    with (run / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert status(run, capsys)[0] == 4
    for summary, code in (({"iterations": 2}, 5), ({"iterations": 3}, 3), ("[", 5)):
        (run / "summary.json").write_text(json.dumps(summary) if isinstance(summary, dict) else summary)
        assert status(run, capsys)[0] == code
    (run / "summary.json").write_text(json.dumps({"iterations": 3, "updates_with_gradient": 3}))
    assert status(run, capsys)[0] == 0
    assert status(run.parent, capsys)[0] == 2
