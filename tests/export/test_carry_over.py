"""A LoRA of the base on the distilled sibling: drawn as stock diffusers draws, and refused where it does not fit."""

import json

import pytest
import torch

from diffrl.cli import main
from diffrl.export.diffusers import export_run
from diffrl.export.pictures import open_pipeline
from diffrl.export.request import ModelOptions
from diffrl.models.tiny import build_pipeline, save_pipeline
from tests.conftest import WORDS
from tests.training.harness import settings, start
from tests.training.test_two_networks import wan22, wan_settings  # noqa: F401

CPU = torch.device("cpu")


def distilled(family, folder, **changes):
    """A sibling: the same architecture but for `changes`, other weights, and a name that says what it is."""
    pipeline = build_pipeline(family, WORDS.split(), seed=7)
    torch.manual_seed(5)
    if family in ("sd3", "flux"):
        pipeline.transformer = type(pipeline.transformer).from_config(pipeline.transformer.config, **changes)
    save_pipeline(pipeline, folder)
    return folder


def exported(family, pipeline, directory):
    """A LoRA of one iteration."""
    model = {"family": family, "lora": {"rank": 3, "alpha": 7.5}}
    run, _ = start(settings(pipeline, directory, model=model, train={"learning_rate": 3e-2}, run={"iterations": 1}))
    export_run(run, directory / "exported")
    return directory / "exported"


def velocity(adapter):
    """What a pipeline predicts at one level."""
    latents = adapter.init_latents(lambda shape: torch.randn(1, *shape, generator=torch.Generator().manual_seed(3)))
    with torch.no_grad():
        return adapter.velocity(latents, torch.tensor([0.7]), adapter.encode_prompts(["a red circle"]), 1.0)


@pytest.mark.slow
def test_a_lora_moves_the_distilled_sibling_as_in_stock_diffusers(random_pipelines, tmp_path):
    """FLUX.1-schnell has no guidance embedder, unlike dev."""
    lora = exported("flux", random_pipelines("flux"), tmp_path)
    turbo = distilled("flux", tmp_path / "turbo", guidance_embeds=False)
    plain, carried = (
        open_pipeline(ModelOptions(model=str(turbo), family="flux", height=32, width=32, lora=path), CPU)[0]
        for path in (None, str(lora))
    )
    before, after = velocity(plain), velocity(carried)
    plain.pipeline.load_lora_weights(str(lora))
    assert torch.equal(velocity(plain), after) and (after - before).abs().max() > 1e-3


@pytest.mark.long
def test_generate_and_evaluate_take_it(random_sd3, tmp_path, capsys):
    lora = exported("sd3", random_sd3, tmp_path)
    turbo, found = distilled("sd3", tmp_path / "turbo", num_layers=2), []
    for extra in ((), ("--lora", str(lora))):
        with pytest.raises(SystemExit) as end:
            words = ["--prompts", "shapes:tune", "--steps", "2", "--samples", "4", "--reward", "contrast", "--json"]
            main(["evaluate", "--model", str(turbo), *words, *extra])
        assert not end.value.code
        found.append(json.loads(capsys.readouterr().out)[0]["means"])
    assert found[0] != found[1]
    with pytest.raises(SystemExit) as end:
        words = ["--prompt", "a red circle", "--steps", "1", "--out", str(tmp_path / "drawn")]
        main(["generate", "--model", str(turbo), "--lora", str(lora / "pytorch_lora_weights.safetensors"), *words])
    assert not end.value.code and (tmp_path / "drawn/0000-0.png").is_file()


def test_a_lora_of_another_network_is_one_clear_error(random_sd3, tmp_path, capsys):
    lora = exported("sd3", random_sd3, tmp_path)
    capsys.readouterr()
    for changes, reason in (
        ({"num_layers": 2, "attention_head_dim": 16}, "is 128 x 128, here 64 x 64"),
        ({"num_layers": 1}, "layers: transformer_blocks.0.attn.to_add_out, "),
    ):
        other = distilled("sd3", tmp_path / f"other-{changes['num_layers']}", **changes)
        with pytest.raises(SystemExit) as end:
            words = ["--prompt", "a red circle", "--out", str(tmp_path / "drawn"), "--lora", str(lora)]
            main(["generate", "--model", str(other), *words])
        said = " ".join(capsys.readouterr().err.split())
        assert end.value.code == 2 and reason in said and "--lora must be a LoRA of this network" in said
        assert "Traceback" not in said and not (tmp_path / "drawn").exists()


def test_a_run_has_its_own_weights(tmp_path, capsys):
    with pytest.raises(SystemExit) as end:
        main(["generate", "--run", str(tmp_path), "--lora", "x", "--prompt", "a", "--out", str(tmp_path / "out")])
    assert end.value.code == 2 and "--negative-prompt go with --model" in " ".join(capsys.readouterr().err.split())
