"""Wan 2.2's two networks: both are trained, each on the steps of its noise levels, and both are exported."""

import pytest
import torch

from diffrl.export.diffusers import export_run
from diffrl.models.tiny import save_pipeline
from tests.conftest import WORDS
from tests.tiers import daily
from tests.training.harness import make_run, settings, start, weights_of


@pytest.fixture(scope="module")
def wan22(tmp_path_factory):
    from diffrl.models.tiny import build_pipeline

    folder = tmp_path_factory.mktemp("pipelines") / "wan22"
    save_pipeline(build_pipeline("wan", WORDS.split(), seed=0, boundary_ratio=0.875), folder)
    return folder


def wan_settings(folder, directory, **stochastic):
    return settings(
        folder,
        directory,
        model={"family": "wan", "lora": {"rank": 3, "alpha": 6}},
        rollout={"steps": 6, "stochastic": {"kind": "window", **stochastic}, "micro_batch": 4},
        train={"micro_batch": 4, "learning_rate": 1.0e-2, "updates_per_iteration": 1},
        run={"name": "run", "dir": str(directory), "seed": 3, "iterations": 1, "checkpoint_every": 1},
    )


def moved(trainer, before, network):
    after = weights_of(trainer)
    names = [name for name in after if name.startswith(f"{network}.") and "lora_B" in name]
    assert names
    return [not torch.equal(before[name], after[name]) for name in names]


WINDOWS = [(0, 2, True, False), (3, 2, False, True)]


@pytest.mark.parametrize(("start_step", "size", "high", "low"), daily(WINDOWS, WINDOWS[:1], WINDOWS[1:]))
def test_each_network_learns_from_its_own_steps(wan22, tmp_path, start_step, size, high, low):
    trainer, run = make_run(wan_settings(wan22, tmp_path, start=start_step, size=size))
    boundary = trainer.session.sigmas[:-1] >= 0.875
    assert bool(boundary[start_step : start_step + size].any()) is high
    assert bool((~boundary[start_step : start_step + size]).any()) is low
    before = weights_of(trainer)
    trainer.iterate()
    run.journal.close()
    assert trainer.updater.on_policy_error < 1e-5
    assert any(moved(trainer, before, "high")) is high and any(moved(trainer, before, "low")) is low


@pytest.mark.long
def test_both_loras_are_exported_and_load_in_plain_diffusers(wan22, tmp_path):
    from diffusers import WanPipeline

    run, _ = start(wan_settings(wan22, tmp_path, start=1, size=3))
    export_run(run, tmp_path / "exported")
    names = sorted(path.name for path in (tmp_path / "exported").glob("*.safetensors"))
    assert names == ["pytorch_lora_weights.safetensors", "pytorch_lora_weights_2.safetensors"]
    card = (tmp_path / "exported/README.md").read_text()
    code = card.split("```python\n")[1].split("```")[0]
    loading = code.split("video = ")[0]
    assert "load_into_transformer_2=True" in loading and "num_frames=9" in code and ".frames[0]" in code
    scope = {}
    exec(loading, scope)  # noqa: S102
    aligned = scope["pipeline"]
    plain = WanPipeline.from_pretrained(str(wan22))
    from diffrl.run.checkpoints import load_aligned

    ours = load_aligned(run, torch.device("cpu")).adapter
    latents = torch.randn(1, 8, 3, 4, 4, generator=torch.Generator().manual_seed(1))
    for level, name in ((900.0, "transformer"), (300.0, "transformer_2")):
        call = {
            "hidden_states": latents,
            "timestep": torch.tensor([level]),
            "encoder_hidden_states": plain.encode_prompt("a red circle", max_sequence_length=8)[0],
            "return_dict": False,
        }
        with torch.no_grad():
            theirs, own = getattr(aligned, name).eval()(**call)[0], ours.transformer(**call)[0]
            base = getattr(plain, name).eval()(**call)[0]
        torch.testing.assert_close(theirs, own, rtol=1e-4, atol=1e-5)
        assert not torch.allclose(theirs, base, rtol=1e-4, atol=1e-5)
