"""What check passes, train does not refuse by anything that check could have known: both take the same stages."""

import copy

import pytest

from diffrl import lifecycle
from diffrl.config.load import load_config, make_config
from diffrl.errors import DiffrlError
from diffrl.preflight import stages
from diffrl.preflight.check import check_config
from diffrl.preflight.machine import target_machine
from diffrl.preflight.preview import Preview
from diffrl.preflight.stages import Stage, open_session
from tests.conftest import ROOT
from tests.training.harness import settings, start

WORN_OUT = {"name": "shapes", "options": {"colour": "red"}}
BROKEN = {
    "prompts that are not there": {"prompts": {"train": "nowhere.txt"}},
    "prompts without what a reward needs": {
        "prompts": {"train": "moving_shapes:train"},
        "rewards": [{"name": "geneval"}],
    },
    "nothing held out": {"prompts": {"eval": "shapes:train"}, "eval": {"samples": 4}},
    "a reward's option": {"rewards": [WORN_OUT]},
    "a held-out reward's option": {"eval": {"rewards": [WORN_OUT], "samples": 5, "steps": 3}},
    "a reward of videos": {"rewards": [{"name": "moving_shapes"}]},
    "a pipeline that is not there": {"model": {"path": "nowhere/at/all"}},
    "another family's pipeline, known by its name": {"model": {"path": "Tongyi-MAI/Z-Image", "lora": None}},
    "layers that the network lacks": {"model": {"lora": {"rank": 2, "targets": ["no_such_layer"]}}},
    "a LoRA that is not there": {"model": {"lora": {"rank": 2, "start": {"path": "no.safetensors"}}}},
    "a run that is not there": {"model": {"init_from": {"run": "no/run", "step": 2}}},
    "noise that rounding would drown": {
        "rollout": {
            "latents_dtype": "bfloat16",
            "dynamics": {"kind": "cps", "noise_level": 0.001},
            "stochastic": {"kind": "all"},
        }
    },
    "several": {"prompts": {"train": "nowhere.txt"}, "rewards": [WORN_OUT], "model": {"path": "nowhere/at/all"}},
}


def message_of(refuse):
    with pytest.raises(DiffrlError) as refused:
        refuse()
    return str(refused.value)


@pytest.mark.parametrize("case", BROKEN)
def test_check_and_train_refuse_a_configuration_with_the_same_message(case, random_sd3, tmp_path, monkeypatch):
    monkeypatch.setattr(lifecycle, "open_session", lambda *args: pytest.fail("something was loaded"))
    data = settings(random_sd3, tmp_path, **copy.deepcopy(BROKEN[case]))
    checked = message_of(lambda: check_config(make_config(data)))
    assert checked == message_of(lambda: start(data))
    assert ("3 problems" in checked) == (case == "several")
    assert not (tmp_path / "run").exists()


def test_a_run_that_is_there_is_refused_by_both(random_sd3, tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    data = settings(random_sd3, tmp_path)
    assert "already exists" in message_of(lambda: check_config(make_config(data)))
    assert "already exists" in message_of(lambda: start(data))


def test_all_stages_are_looked_at_before_the_first_is_opened_and_check_opens_none(random_sd3, tmp_path, monkeypatch):
    seen = []

    class OpenedError(Exception):
        pass

    def opened(opening):
        raise OpenedError

    noted = tuple(Stage(s.label, lambda preview, s=s: seen.append(s.label), opened) for s in stages.STAGES)
    monkeypatch.setattr(stages, "STAGES", noted)
    check_config(make_config(settings(random_sd3, tmp_path)))
    checked, seen = seen, []
    with pytest.raises(OpenedError):
        start(settings(random_sd3, tmp_path))
    assert seen == checked == [stage.label for stage in noted]


def test_what_check_passes_opens(random_sd3, tmp_path):
    config = make_config(settings(random_sd3, tmp_path))
    check_config(config)
    session = open_session(Preview(config), tmp_path / "run")
    assert len(session.eval_prompts) == 5 and session.losses and not (tmp_path / "run").exists()


def test_a_world_that_cannot_share_the_batch_is_refused_by_check(random_sd3, tmp_path):
    config = make_config(settings(random_sd3, tmp_path))
    assert "multiple of the number of processes" in message_of(lambda: check_config(config, processes=3))


def test_attention_without_masks_is_refused_for_another_gpu_too():
    config = load_config(ROOT / "configs/z_image/diffrl.yaml", ["model.attention=flash"])
    message = message_of(lambda: check_config(config, target=target_machine("h100", None)))
    assert "mask the padding of z_image's prompts. Got 'flash'" in message
