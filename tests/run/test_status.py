"""How a run stands is told by what lies there, whatever its process ended with."""

import fcntl
import json

import pytest

from diffrl.cli import main
from tests.patience import LONG
from tests.run.test_output import start
from tests.training.harness import settings, write_config

LEAVES = """
import os
from reward_models.images.shapes import ShapesScorer


class Leaves(ShapesScorer):
    def __call__(self, batch):
        rows = open("run/metrics.jsonl").read() if os.path.exists("run/metrics.jsonl") else ""
        if '"iteration": 1' in rows or '"iteration":1' in rows:
            os._exit(0)
        return super().__call__(batch)
"""


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


@pytest.mark.long
def test_a_reward_that_leaves_with_0_has_not_finished_the_run(random_sd3, tmp_path, capsys):
    (tmp_path / "leaving.py").write_text(LEAVES)
    changed = settings(random_sd3, tmp_path, run={"iterations": 3}, rewards=[{"name": "leaving:Leaves"}])
    with start(["train", write_config(changed, tmp_path / "config.yaml")], None, cwd=tmp_path) as process:
        process.stderr.read()
    assert process.wait(LONG) == 0 and not (tmp_path / "run/summary.json").exists()
    code, line = status(tmp_path / "run", capsys)
    assert code == 5 and "1 of 3" in line and "--resume" in line
