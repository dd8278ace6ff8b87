"""A run that goes on training somebody's LoRA begins as stock diffusers draws with it, or it does not begin."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from diffrl.config.load import make_config
from diffrl.errors import ConfigError
from diffrl.export.diffusers import export_run
from diffrl.models.lora_file import FIRST_LORA, SECOND_LORA
from diffrl.models.tiny import save_pipeline
from diffrl.preflight.check import check_config
from diffrl.run.start_weights import pin_initial, restore_initial
from diffrl.training.loop import Trainer
from tests.conftest import WORDS
from tests.run.test_resume import crashing
from tests.tiers import daily
from tests.training.harness import assert_same_run, go_on, make_run, make_trainer, rows_of, settings, start

TARGETS = ["attn.to_q", "attn.to_out.0"]
LORA = {"rank": 3, "alpha": 5, "targets": TARGETS}


def published(folder, out, alpha=6, **options):
    """A LoRA made by peft and saved by diffusers, its weights not zero."""
    import diffusers
    from peft import LoraConfig
    from peft.utils import get_peft_model_state_dict

    pipeline = diffusers.DiffusionPipeline.from_pretrained(str(folder))
    settings = {"r": 3, "lora_alpha": alpha, "target_modules": TARGETS} | options
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        pipeline.transformer.add_adapter(LoraConfig(**settings, init_lora_weights=False))
    type(pipeline).save_lora_weights(
        str(out),
        transformer_lora_layers=get_peft_model_state_dict(pipeline.transformer),
        transformer_lora_adapter_metadata=pipeline.transformer.peft_config["default"].to_dict(),
    )
    return out / FIRST_LORA


@pytest.fixture(scope="module")
def lora(random_sd3, tmp_path_factory):
    return published(random_sd3, tmp_path_factory.mktemp("published"))


def of(pipeline, directory, path, lora=LORA, family="sd3", **changes):
    data = settings(pipeline, directory, train={"learning_rate": 1e-2}, **changes)
    data["model"] |= {"family": family, "lora": lora | {"start": {"path": str(path)}}}
    return data


def stock(folder, *loras):
    """The pipeline of stock diffusers with a LoRA loaded."""
    from diffusers import DiffusionPipeline

    pipeline = DiffusionPipeline.from_pretrained(str(folder))
    for path in loras:
        pipeline.load_lora_weights(str(path))
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def drawn(pipeline):
    latents = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(3))
    call = {"num_inference_steps": 3, "guidance_scale": 2.0, "height": 32, "width": 32, "max_sequence_length": 8}
    return pipeline(["a red circle", "two blue squares"], latents=latents, output_type="latent", **call).images


def test_before_any_update_it_draws_what_stock_diffusers_draws_with_the_lora(random_sd3, tmp_path, lora):
    """The LoRA's alpha is 6, the configuration's 5."""
    trainer = make_trainer(of(random_sd3, tmp_path, lora))
    (said,) = restore_initial(trainer.session.policy, trainer.config)
    assert "alpha of 6 scaled to 5" in said
    pipeline = trainer.session.adapter.pipeline
    ours, theirs, base = drawn(pipeline), drawn(stock(random_sd3, lora)), drawn(stock(random_sd3))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert (ours - base).abs().max() > 0.01
    with trainer.session.policy.reference():
        assert torch.equal(drawn(pipeline), base)


def test_the_first_update_is_on_policy_and_its_reference_is_without_the_lora(random_sd3, tmp_path, lora):
    trainer, run = make_run(of(random_sd3, tmp_path, lora.parent, objective={"kl": 0.5}))
    restore_initial(trainer.session.policy, trainer.config)
    done = trainer.iterate()
    run.journal.close()
    assert trainer.updater.on_policy_error < 1.5e-5
    assert done.metrics["update/reference_kl"] > 0


def without_metadata(tensors):
    """As older versions of diffusers saved it: alpha is the rank."""
    return tensors


def kohya(tensors):
    """sd-scripts' names, with alphas that differ: 1.5 for the first layers, 6 for the others."""
    named = {}
    for key, tensor in tensors.items():
        layer, side = key.removeprefix("transformer.").split(".lora_")
        block, part = layer.split(".attn.")
        stem = f"lora_unet_double_blocks_{block.rpartition('.')[2]}_img_attn_{part.replace('to_out.0', 'proj')}"
        named[f"{stem}.lora_{'down' if side.startswith('A') else 'up'}.weight"] = tensor
        named[f"{stem}.alpha"] = torch.tensor(1.5 if block.endswith("0") else 6.0)
    return named


FORMATS = {"sd3": [without_metadata], "flux": [without_metadata, kohya]}
CASES = [(family, form) for family, forms in FORMATS.items() for form in forms]


@pytest.mark.long
@pytest.mark.parametrize(("family", "form"), daily(CASES, CASES[:3]))
def test_files_of_other_trainers_are_read_as_diffusers_reads_them(random_pipelines, tmp_path, family, form):
    folder = random_pipelines(family)
    layers = ["attn.to_out.0"] if form is kohya else TARGETS
    path = published(folder, tmp_path / "lora", target_modules=layers)
    tensors = load_file(path)
    if form is kohya:  # single blocks have no such layer
        assert all(".attn." in name for name in tensors)
    save_file(form(tensors), path)
    data = of(folder, tmp_path, path, LORA | {"targets": layers}, family)
    trainer = make_trainer(data)
    restore_initial(trainer.session.policy, trainer.config)
    theirs = stock(folder, path).transformer
    for name, module in trainer.session.policy.inner.named_modules():
        if hasattr(module, "lora_A"):
            (other,) = theirs.get_submodule(name).lora_A.keys()
            ours, expected = module.get_delta_weight("default"), theirs.get_submodule(name).get_delta_weight(other)
            torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-7)
            assert ours.abs().max() > 0


def test_an_exported_lora_goes_on_where_its_run_was(random_sd3, tmp_path, lora):
    first, _ = start(of(random_sd3, tmp_path / "first", lora, run={"eval_every": 1, "iterations": 1}))
    export_run(first, tmp_path / "exported")
    assert "from the LoRA" in (tmp_path / "exported/README.md").read_text()
    second, said = start(of(random_sd3, tmp_path / "second", tmp_path / "exported", run={"iterations": 1}))
    assert "Begins with the LoRA" in said and "scaled" not in said
    held_out = [{k: v for k, v in row.items() if k.startswith("held_out/")} for row in rows_of(first)]
    begun = {k: v for k, v in rows_of(second)[0].items() if k.startswith("held_out/")}
    assert begun == held_out[1] != held_out[0]
    kept = json.loads((second / "environment.json").read_text())["lora_start"]
    assert kept["path"] == str(tmp_path / "exported") and len(kept["sha256"]) == 64


def test_killed_before_its_first_checkpoint_it_begins_with_the_same(random_sd3, tmp_path, lora):
    path = shutil.copyfile(lora, tmp_path / "mine.safetensors")
    straight, _ = start(of(random_sd3, tmp_path / "straight", path))
    with crashing(Trainer, "iterate", 2):
        start(of(random_sd3, tmp_path / "killed", path))
    run = tmp_path / "killed/run"
    save_file({name: 2 * tensor for name, tensor in load_file(path).items()}, path)
    with pytest.raises(ConfigError, match="it is another LoRA now"):
        go_on(run)
    assert "Begins with the LoRA" in go_on(run, f"model.lora.start.path={lora}")
    assert_same_run(run, straight)


@pytest.mark.long
def test_both_networks_of_wan_22_begin_with_their_own(tmp_path, random_sd3):
    from diffrl.models.tiny import build_pipeline

    folder, layers = tmp_path / "wan22", ["attn1.to_q"]
    save_pipeline(build_pipeline("wan", WORDS.split(), seed=0, boundary_ratio=0.875), folder)
    path = published(folder, tmp_path / "lora", target_modules=layers)
    data = of(folder, tmp_path, path.parent, LORA | {"targets": layers}, "wan")
    with pytest.raises(ConfigError, match=f"without {SECOND_LORA}"):
        check_config(make_config(data), ask_rewards=False)
    tensors = load_file(path)
    save_file({name: 3 * tensor for name, tensor in tensors.items()}, path.parent / SECOND_LORA)
    trainer = make_trainer(data)
    restore_initial(trainer.session.policy, trainer.config)
    weights = trainer.session.policy.state()
    for name, tensor in tensors.items():
        side, layer = name.split(".lora_")[1][0], name.removeprefix("transformer.").split(".lora_")[0]
        high = weights[f"high.{layer}.lora_{side}.default.weight"]
        low = weights[f"low.{layer}.lora_{side}.default.weight"]
        torch.testing.assert_close(high, (6 / 5 if side == "B" else 1.0) * tensor)
        torch.testing.assert_close(low, (3 / 5 if side == "B" else 1.0) * 3 * tensor)  # no metadata: alpha is the rank


WRONG = {
    "model.lora.rank=3": {"rank": 4},
    "also has": {"targets": ["attn.to_q"]},
    "lacks": {"targets": [*TARGETS, "attn.to_k"]},
}


@pytest.mark.parametrize("words", WRONG)
def test_what_does_not_fit_is_one_sentence_of_check(random_sd3, tmp_path, lora, words):
    path = lora
    data = of(random_sd3, tmp_path, path, LORA | WRONG[words])
    with pytest.raises(ConfigError, match=words) as caught:
        check_config(make_config(data), ask_rewards=False)
    assert len(caught.value.problems) == 1


def test_a_missing_path_and_two_beginnings_are_told(random_sd3, tmp_path, lora):
    with pytest.raises(ConfigError, match=r"model.lora.start.path must be .* does not exist") as caught:
        check_config(make_config(of(random_sd3, tmp_path, tmp_path / "nowhere")), ask_rewards=False)
    assert len(caught.value.problems) == 1
    data = of(random_sd3, tmp_path, lora)
    assert any("the LoRA" in line for line in check_config(make_config(data), ask_rewards=False))
    assert len(pin_initial(make_config(data)).model.lora.start.sha256) == 64
    data["model"]["init_from"] = {"run": "elsewhere", "step": 1}
    with pytest.raises(ConfigError, match="Got both"):
        make_config(data)


def test_pefts_configuration_belongs_to_what_is_resumed(random_sd3, tmp_path, lora):
    """Its alpha is in a file of its own: another one is another LoRA."""
    folder = tmp_path / "peft"
    folder.mkdir()
    named = {key.replace("transformer.", "base_model.model.", 1): tensor for key, tensor in load_file(lora).items()}
    save_file(named, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"r": 3, "lora_alpha": 6}')
    data = of(random_sd3, tmp_path, folder)
    pinned = pin_initial(make_config(data))
    (folder / "adapter_config.json").write_text('{"r": 3, "lora_alpha": 12}')
    with pytest.raises(ConfigError, match="it is another LoRA now"):
        pin_initial(pinned)
