"""TensorBoard beside metrics.jsonl, and trackers that are not there."""

import importlib.util
import json

import pytest
from rich.console import Console

from diffrl.config.load import make_config
from diffrl.errors import ConfigError
from diffrl.run.lifecycle import train


def quiet():
    return Console(quiet=True)


@pytest.mark.long
def test_tensorboard_gets_the_rows_of_metrics_jsonl(run_settings):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_settings["run"]["iterations"] = 2
    run_settings["track"]["tensorboard"] = True
    run_dir = train(make_config(run_settings), quiet())
    events = min(run_dir.rglob("events.out.tfevents.*"), key=lambda path: len(path.parts))  # deeper ones hold hparams
    board = EventAccumulator(str(events.parent))
    board.Reload()
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    for name in ("reward/mean", "update/ratio_error_max", "network_evaluations"):
        logged = {event.step: event.value for event in board.Scalars(name)}
        assert logged == pytest.approx({row["iteration"]: row[name] for row in rows if name in row}, rel=1e-6)
        assert set(logged) == {1, 2}


def test_a_tracker_that_is_not_installed_is_refused(run_settings, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "wandb" else find_spec(name, *rest)
    )
    run_settings["track"]["wandb"] = {"project": "p", "mode": "offline"}
    with pytest.raises(ConfigError, match=r"pip install 'diffrl\[wandb\]'"):
        train(make_config(run_settings), quiet())
