"""The guide's example, an adapter of one's own for a pipeline that diffrl does not know, does what the guide says."""

import re
import sys
from pathlib import Path

import pytest
import torch
import yaml

from diffrl.cli import main
from diffrl.errors import ConfigError
from diffrl.functional.dynamics import ode_step
from diffrl.models.loading import load_adapter
from diffrl.models.tiny import build_t5, build_word_tokenizer
from tests.conftest import WORDS
from tests.training.harness import undrawn

GUIDE = Path(__file__).parents[2] / "docs/add-a-model.md"
NAME = "my_aura:AuraFlowAdapter"
PROMPTS = ["a red circle", "two blue squares above a green triangle"]


@pytest.fixture(scope="module")
def aura(tmp_path_factory):
    """A tiny random AuraFlowPipeline for 32 x 32 pictures."""
    from diffusers import AuraFlowPipeline, AuraFlowTransformer2DModel, AutoencoderKL, FlowMatchEulerDiscreteScheduler

    torch.manual_seed(0)
    tokenizer = build_word_tokenizer(WORDS.split())
    pipeline = AuraFlowPipeline(
        tokenizer=tokenizer,
        text_encoder=build_t5(len(tokenizer)).eval(),
        vae=AutoencoderKL(
            down_block_types=("DownEncoderBlock2D",) * 3,
            up_block_types=("UpDecoderBlock2D",) * 3,
            block_out_channels=(8, 8, 16),
            layers_per_block=1,
            norm_num_groups=4,
            scaling_factor=0.13025,
        ),
        transformer=AuraFlowTransformer2DModel(
            sample_size=8,
            num_mmdit_layers=1,
            num_single_dit_layers=1,
            attention_head_dim=16,
            num_attention_heads=2,
            joint_attention_dim=32,
            caption_projection_dim=32,
            pos_embed_max_size=16,
        ),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=1.73),
    )
    folder = tmp_path_factory.mktemp("pipelines") / "aura"
    pipeline.save_pretrained(folder)
    return folder


@pytest.fixture
def module(tmp_path, monkeypatch):
    """The guide's code as a module of the user's."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), flags=re.DOTALL)
    code = next(block for block in blocks if "class AuraFlowAdapter" in block)
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/my_aura.py").write_text(code)
    monkeypatch.syspath_prepend(str(tmp_path / "modules"))
    monkeypatch.delitem(sys.modules, "my_aura", raising=False)


@pytest.mark.parametrize("scale", [1.0, 3.5])
def test_it_equals_the_stock_pipeline(module, aura, scale):
    adapter = load_adapter(NAME, str(aura), dtype="float32", max_sequence_length=13)
    start = adapter.init_latents(lambda shape: torch.randn(2, *shape, generator=torch.Generator().manual_seed(5)))
    latents, conditioning, sigmas = start, adapter.encode_prompts(PROMPTS), adapter.sigmas(5)
    stock = {"latents": start.clone(), "guidance_scale": scale, "num_inference_steps": 5, "max_sequence_length": 13}
    stock |= {"height": 32, "width": 32}
    with torch.no_grad():
        for s, n in zip(sigmas, sigmas[1:], strict=False):
            latents = ode_step(latents, adapter.velocity(latents, s.expand(2), conditioning, scale), s, n).mean
        expected = adapter.pipeline(PROMPTS, output_type="latent", **stock).images
        pictures = torch.from_numpy(adapter.pipeline(PROMPTS, output_type="np", **stock).images).movedim(-1, 1)
    torch.testing.assert_close(latents, expected, rtol=1e-4, atol=1e-5)
    assert (adapter.decode(expected) - 255 * pictures).abs().max() <= 1 and (expected - start).abs().mean() > 0.1


def run(*arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)


@pytest.mark.long
def test_it_trains_explores_draws_and_is_exported(module, aura, tmp_path):
    settings = {
        "run": {"name": "run", "dir": str(tmp_path), "iterations": 1, "eval_every": None},
        "model": {"family": NAME, "path": str(aura), "device": "cpu", "max_sequence_length": 13, "lora": {"rank": 3}},
        "prompts": {"train": "shapes:train", "eval": "shapes:tune", "per_iteration": 1},
        "rollout": {
            "steps": 4,
            "guidance_scale": 3.0,
            "dynamics": {"kind": "flow_sde"},
            "stochastic": {"kind": "splits"},
            "tree": {"roots": 2, "splits": [0, 1]},
            "explore": {"precision": "nvfp4", "engine": "emulated", "candidates": 16, "keep": 8},
        },
        "rewards": [{"name": "tests.training.scorers:Brightness"}],
        "credit": {"reward": "fused", "normalise": "depth"},
        "train": {"learning_rate": 1.0e-3},
        "eval": {"rewards": [{"name": "shapes_strict"}], "samples": 2, "steps": 2},
    }
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(settings))
    assert run("check", path) == 0 and run("plan", path) == 0
    with undrawn():
        assert run("train", path) == 0
        assert run("train", "--resume", tmp_path / "run") == 0
    drawn = ("--prompt", "a red circle", "--steps", 2, "--out", tmp_path / "drawn")
    assert run("generate", "--run", tmp_path / "run", *drawn) == 0
    assert run("export", tmp_path / "run", "--out", tmp_path / "exported") == 0
    assert list((tmp_path / "drawn").glob("*.png")) and list((tmp_path / "exported").rglob("*.safetensors"))


def test_a_pipeline_of_another_class_is_refused(module, random_sd3):
    with pytest.raises(ConfigError, match="model.family=aura needs a AuraFlowPipeline. Got StableDiffusion3Pipeline"):
        load_adapter(NAME, str(random_sd3), dtype="float32")


def test_an_adapter_that_says_nothing_of_itself(tmp_path, monkeypatch, random_sd3):
    (tmp_path / "mute.py").write_text("class Adapter:\n    pass\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="model.family 'mute:Adapter' must be an adapter with an attribute `family`"):
        load_adapter("mute:Adapter", str(random_sd3), dtype="float32")
