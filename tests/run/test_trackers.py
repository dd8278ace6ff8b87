"""TensorBoard beside metrics.jsonl, and trackers that are not there."""

import importlib.util
import json
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from diffrl.config.load import make_config
from diffrl.errors import ConfigError
from diffrl.tracking.store import SampleStore
from diffrl.training.loop import Trainer
from tests.run.test_resume import Crash, crash_at
from tests.training.harness import go_on, start


@pytest.mark.long
def test_tensorboard_gets_the_rows_of_metrics_jsonl_and_the_same_held_out_samples_at_every_evaluation(run_settings):
    """Pixel for pixel those of the store, with prompt and scores beside them."""
    from tensorboard.backend.event_processing.event_accumulator import IMAGES, TENSORS, EventAccumulator

    run_settings["run"] |= {"iterations": 2, "eval_every": 1}
    run_settings["track"]["tensorboard"] = True
    run_dir, _ = start(run_settings)
    events = min(run_dir.rglob("events.out.tfevents.*"), key=lambda path: len(path.parts))  # deeper ones hold hparams
    board = EventAccumulator(str(events.parent), size_guidance={IMAGES: 0, TENSORS: 0})
    board.Reload()
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    for name in ("reward/mean", "update/ratio_error_max", "network_evaluations"):
        logged = {event.step: event.value for event in board.Scalars(name)}
        assert logged == pytest.approx({row["iteration"]: row[name] for row in rows if name in row}, rel=1e-6)
        assert set(logged) == {1, 2}
    names = board.Tags()["images"]
    assert len(names) == run_settings["track"]["pictures_per_evaluation"]
    with SampleStore.open_readonly(run_dir) as store:
        kept = {(one.iteration, one.prompt): one for one in store.read(stage="eval") if one.file and one.exact}
    for name in names:
        logged = board.Images(name)
        words = [event.tensor_proto.string_val[0].decode() for event in board.Tensors(f"{name}/text_summary")]
        assert [event.step for event in logged] == [0, 1, 2]
        for event, text in zip(logged, words, strict=True):
            image = np.asarray(Image.open(BytesIO(event.encoded_image_string)))
            one = kept[event.step, text.partition("\n")[0]]
            assert np.array_equal(image, np.asarray(Image.open(run_dir / one.file)))
            assert text.startswith(one.prompt) and f"{next(iter(one.rewards.values())):.3f}" in text


@pytest.mark.long
def test_wandb_offline_has_rows_and_images(run_settings, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    run_settings["run"] |= {"iterations": 2, "eval_every": 1}
    run_settings["track"]["wandb"] = {"project": "p", "mode": "offline"}
    run_dir, _ = start(run_settings)
    images = list(run_dir.rglob("media/images/held_out_images/*.png"))
    assert len(images) == 3 * run_settings["track"]["pictures_per_evaluation"]
    (record,) = run_dir.rglob("*.wandb")
    assert b"reward/mean" in record.read_bytes()


@pytest.mark.long
def test_tensorboard_has_each_step_once_after_a_kill(run_settings, monkeypatch):
    """Iteration 3 is logged, lost with the kill before its checkpoint, and logged again."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run_settings["run"] |= {"iterations": 4, "checkpoint_every": 2}
    run_settings["track"]["tensorboard"] = True
    with monkeypatch.context() as patch:
        crash_at(patch, Trainer, "iterate", 4)
        with pytest.raises(Crash):
            start(run_settings)
    run_dir = Path(run_settings["run"]["dir"]) / "run"
    go_on(run_dir)
    events = min(run_dir.rglob("events.out.tfevents.*"), key=lambda path: len(path.parts))
    board = EventAccumulator(str(events.parent))
    board.Reload()
    assert [event.step for event in board.Scalars("reward/mean")] == [1, 2, 3, 4]


@pytest.fixture(params=["swanlab"])
def swanlab(request, monkeypatch):
    """A place in accelerate, SwanLab's where not said otherwise, with a tracker that keeps what it is given."""
    from accelerate import tracking

    kind, seen = request.param, {"numbers": [], "images": []}

    class Kept(tracking.GeneralTracker):
        name, requires_logging_directory, tracker = kind, False, None

        def __init__(self, project, **options):
            super().__init__()
            seen["options"] = {"project": project, **options}
            if options.get("mode") == "wrong":
                raise ValueError("no such mode")

        def start(self):
            pass

        def store_init_configuration(self, values):
            seen["config"] = values

        def log(self, values, step=None, **options):
            seen["numbers"].append((step, values))

        def log_images(self, values, step=None):
            seen["images"].append((step, values))

    monkeypatch.setitem(tracking.LOGGER_TYPE_TO_CLASS, kind, Kept)
    monkeypatch.setattr(tracking, "get_available_trackers", lambda: list(tracking.LoggerType))
    spec, find_spec = importlib.util.find_spec("json"), importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: spec if name == kind else find_spec(name))
    return seen


def test_other_trackers_of_accelerate_get_numbers_and_images(run_settings, swanlab):
    run_settings["run"] |= {"iterations": 1}
    run_settings["track"]["others"] = {"swanlab": {"experiment_name": "first"}}
    run_dir, _ = start(run_settings)
    rows = [json.loads(line) for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert swanlab["options"] == {"project": "diffrl", "experiment_name": "first"}
    assert swanlab["config"]["train.learning_rate"] == run_settings["train"]["learning_rate"]
    assert [(step, values["reward/mean"]) for step, values in swanlab["numbers"] if "reward/mean" in values] == [
        (row["iteration"], row["reward/mean"]) for row in rows if "reward/mean" in row
    ]
    assert {step for step, _ in swanlab["images"]} == {0, 1}
    (name, (image,)), *_ = swanlab["images"][0][1].items()
    assert name == "held_out_images/00" and image.dtype == np.uint8 and image.ndim == 3


@pytest.mark.parametrize("swanlab", ["clearml"], indirect=True)
def test_clearml_gets_an_image_and_no_list(run_settings, swanlab):
    run_settings["run"] |= {"iterations": 1}
    run_settings["track"]["others"] = {"clearml": {}}
    start(run_settings)
    assert swanlab["images"] and all(image.ndim == 3 for _, values in swanlab["images"] for image in values.values())


@pytest.mark.parametrize(
    "options",
    [
        {"api_key": "k"},
        {"Token": "t"},
        {"logging_dir": "https://me:word@mlflow.example"},
        {"settings": [{"api_key": "k"}]},
    ],
    ids=str,
)
def test_a_secret_is_refused_for_the_card_quotes_the_configuration(run_settings, options):
    run_settings["track"]["others"] = {"mlflow": options}
    with pytest.raises(ConfigError, match="must hold no secret: .* environment variable"):
        make_config(run_settings)


def test_a_tracker_that_cannot_be_started_is_refused(run_settings, swanlab):
    run_settings["track"]["others"] = {"swanlab": {"mode": "wrong"}}
    with pytest.raises(ConfigError, match=r"can be started here \(swanlab\)\. One ended with .*no such mode"):
        start(run_settings)
    go_on(Path(run_settings["run"]["dir"]) / "run", "track.others={}", "run.iterations=1")
    run_settings["run"] |= {"name": "another"}
    run_settings["track"]["others"] = {"mlflow": {}}
    if importlib.util.find_spec("mlflow") is None:
        with pytest.raises(ConfigError, match=r"track\.others\.mlflow needs the mlflow package"):
            start(run_settings)


def test_a_tracker_that_is_not_installed_is_refused(run_settings, monkeypatch):
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *rest: None if name == "wandb" else find_spec(name, *rest)
    )
    run_settings["track"]["wandb"] = {"project": "p", "mode": "offline"}
    with pytest.raises(ConfigError, match=r"pip install 'diffrl\[wandb\]'"):
        start(run_settings)
