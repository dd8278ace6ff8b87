"""The plan's numbers against sums done by hand, and its parameter counts against torch and peft."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save, save_file

from diffrl.config.load import make_config
from diffrl.cost import plan as plan_module
from diffrl.cost.activations import activations_of
from diffrl.cost.plan import even_parts, make_plan, plan_text
from diffrl.errors import ConfigError
from diffrl.models.architecture import header_shapes
from tests.cost.sizes import SIZES

pytestmark = pytest.mark.usefixtures("made_up_sizes")
ROOT = Path(__file__).parents[2]


def config_of(path="nowhere", **changes):
    """6 prompts x 5 roots, 7 steps of which 3 stochastic, 7 iterations; sections in `changes` are merged."""
    data = {
        "run": {"iterations": 7, "eval_every": 3},
        "model": {"family": "sd3", "path": str(path)},
        "prompts": {"train": "shapes:train", "eval": "shapes:tune", "per_iteration": 6},
        "rollout": {
            "steps": 7,
            "guidance_scale": 4.5,
            "dynamics": {"kind": "flow_sde"},
            "stochastic": {"kind": "window", "start": 1, "size": 3, "slide_every": 2},
            "tree": {"roots": 5},
            "micro_batch": 17,
            "decode_batch": 3,
        },
        "rewards": [{"name": "shapes"}, {"name": "shapes_strict"}],
        "objective": {"kind": "grpo", "kl": 0.1},
        "train": {"learning_rate": 1e-4, "updates_per_iteration": 2, "micro_batch": 11},
        "eval": {"rewards": [{"name": "shapes"}], "samples": 13, "steps": 11},
    }
    for section, values in changes.items():
        data[section] = values if isinstance(values, list) else data.get(section, {}) | values
    return make_config(data)


def test_a_run_added_up_by_hand():
    plan = make_plan(config_of())
    assert (plan.groups, plan.samples, plan.edges, plan.updates) == (6, 30, 90, 14)
    assert plan.examples_per_update == (48, 42)  # 15 edges a prompt: 8 and 7
    assert plan.micro_batches == 5 + 4
    assert plan.evaluations == 4  # after 0, 3, 6 and 7 iterations
    assert plan.network_evaluations == {
        "explore": 0,
        "rollout": 2940,  # 7 iterations x 30 samples x 7 steps x 2 for guidance
        "audit": 0,
        "values": 0,
        "old": 0,
        "group": 0,
        "update": 1260,  # 7 x 90 edges x 2
        "reference": 1260,
        "gate": 180,
        "evaluation": 572,  # 4 x 13 samples x 11 steps, without guidance
    }
    assert plan.total_network_evaluations == 6212
    assert plan.decodes == 7 * 30 + 4 * 13
    assert plan.reward_calls == 7 * 30 * 2 + 4 * 13


def test_neither_guidance_nor_reference_where_there_is_none():
    plan = make_plan(config_of(rollout={"guidance_scale": 1.0}, objective={"kl": 0.0}, eval={"guidance_scale": 2}))
    assert plan.network_evaluations == {
        "explore": 0, "rollout": 1470, "audit": 0, "values": 0, "old": 0, "group": 0, "update": 630, "reference": 0,
        "gate": 90, "evaluation": 1144,
    }  # fmt: skip


def test_all_steps():
    plan = make_plan(config_of(rollout={"stochastic": {"kind": "all"}}))
    assert plan.stochastic_steps == (0, 1, 2, 3, 4, 5) and plan.edges == 180


def test_two_processes_share_the_prompts():
    plan = make_plan(config_of(), world_size=2)
    assert plan.micro_batches == 3 + 2  # 24 and 21 edges a process
    assert plan.network_evaluations == make_plan(config_of()).network_evaluations
    with pytest.raises(ConfigError, match="Got per_iteration=6, processes=4."):
        make_plan(config_of(), world_size=4)


@pytest.mark.parametrize(
    ("iterations", "every", "expected"),
    [(7, 3, (0, 3, 6, 7)), (6, 3, (0, 3, 6)), (2, 3, (0, 2)), (3, 3, (0, 3)), (1, 1, (0, 1)), (5, None, (0, 5))],
)
def test_evaluations_never_come_twice_at_the_same_point(iterations, every, expected):
    config = config_of(run={"iterations": iterations, "eval_every": every})
    assert tuple(i for i in range(iterations + 1) if config.run.evaluates_after(i)) == expected
    assert config.run.evaluations == len(expected)


def test_a_sliding_window_moves_in_the_plan_too():
    config = config_of()
    assert [config.rollout.steps_at(i)[0] for i in range(9)] == [1, 1, 2, 2, 3, 3, 0, 0, 1]


@pytest.mark.parametrize(("total", "parts"), [(15, 2), (7, 7), (23, 5), (4, 1)])
def test_parts_are_even_and_complete(total, parts):
    found = even_parts(total, parts)
    assert sum(found) == total and len(found) == parts and max(found) - min(found) <= 1 and min(found) > 0


def write_pipeline(folder):
    """A folder with a sharded transformer, a VAE with a half-precision variant, and config files."""
    torch.manual_seed(0)
    transformer = torch.nn.Sequential(
        torch.nn.Linear(7, 13), torch.nn.LayerNorm(13), torch.nn.Linear(13, 5, bias=False)
    )
    vae = torch.nn.Conv2d(3, 11, 5)
    state = transformer.state_dict()
    names = sorted(state)
    (folder / "transformer").mkdir()
    (folder / "vae").mkdir()
    for shard, part in enumerate((names[:2], names[2:]), start=1):
        file = folder / f"transformer/diffusion_pytorch_model-0000{shard}-of-00002.safetensors"
        save_file({name: state[name] for name in part}, file, metadata={"format": "pt"})
    save_file(vae.state_dict(), folder / "vae/diffusion_pytorch_model.safetensors")
    save_file(
        {k: v.half() for k, v in vae.state_dict().items()}, folder / "vae/diffusion_pytorch_model.fp16.safetensors"
    )
    return transformer, vae


def count(module):
    return sum(parameter.numel() for parameter in module.parameters())


def test_parameters_are_counted_from_the_headers(tmp_path):
    transformer, vae = write_pipeline(tmp_path)
    memory = make_plan(config_of(tmp_path, train={"ema": {"decay": 0.9}}, model={"dtype": "bfloat16"})).memory
    n, frozen = count(transformer), count(vae)
    assert memory.trained_parameters == n and memory.frozen_parameters == {"vae": frozen}
    latents = 30 + 90 + 30  # of the first trained step's beginnings, of every end (the next beginning), of the samples
    columns = 8 * (120 * 5 + 30) + 90 * (3 * 8 + 2 * 4) + 90 * (3 * 8 + 4)  # forest, origins, edges
    stored = latents * 4 * (3 * 6 * 6) + columns
    assert memory.kept == {
        "libraries": 2**30,
        "policy weights": 4 * n,
        "gradients": 4 * n,
        "optimiser": 8 * n,
        "moving average": 4 * n,
        "reference": 2 * n,
        "frozen components": 2 * frozen,
        "scorers": 0,
        "samples and steps": stored,
        "prompt encodings": (6 + 13) * SIZES.encoding * 2,  # an iteration's prompts, and the held-out
    }
    assert memory.passing == {
        "rollout": 101 + 17 * 2 * 1009,
        "update": 307 + 11 * 2 * 7001,
        "evaluation": 101 + config_of().eval.batch * 1009,
        "decode": 3 * 40_009,
    }
    assert memory.peak == sum(memory.kept.values()) + max(memory.passing.values()) == memory.needed("cuda")
    host = memory.host
    assert host.kept == {
        "libraries": 2**30,
        "offloaded parts": 0,
        "decoded images": 30 * 3 * 24 * 24,
        "prompt encodings": (7 * 6 + 13) * SIZES.encoding * 2,  # all that the run meets
        "scorers on cpu": 0,
    }
    assert host.passing == {"loading": 2 * (n + frozen), "rewards": 0, "checkpoint": 8 * n} and host.mapped == 0
    assert memory.needed_by_host("cuda") == sum(host.kept.values()) + max(2 * (n + frozen), 8 * n)
    assert (
        memory.needed("cpu") - memory.peak
        == sum(host.kept.values()) - 2**30
        == memory.needed_by_host("cpu") - memory.peak
    )


def test_choices_show_in_the_memory(tmp_path):
    transformer, _ = write_pipeline(tmp_path)
    plain = make_plan(config_of(tmp_path)).memory
    assert plain.kept["moving average"] == 0
    assert make_plan(config_of(tmp_path, objective={"kl": 0.0})).memory.kept["reference"] == 0
    eight = make_plan(config_of(tmp_path, train={"optimizer": "adamw_8bit"})).memory
    assert eight.kept["optimiser"] == 2 * count(transformer)
    halved = make_plan(config_of(tmp_path), world_size=2).memory
    assert halved.kept["samples and steps"] * 2 == plain.kept["samples and steps"]


def test_a_guided_reference_is_planned_with_its_doubled_batch(tmp_path):
    """The policy predicts for the prompt alone, the reference for the empty one too, beside the policy's graph."""
    write_pipeline(tmp_path)
    unguided = {"rollout": {"guidance_scale": 1.0}, "eval": {"guidance_scale": 1.0}, "model": {"path": str(tmp_path)}}
    policy, graph = 307 + 11 * 7001, 211 + 11 * 5003
    for objective, update in (
        ({"kl": 0.0}, policy),
        ({"kl": 0.1}, max(policy, graph + 11 * 1009)),
        ({"kl": 0.1, "kl_guidance": 4.5}, graph + 2 * 11 * 1009),
    ):
        assert make_plan(config_of(objective=objective, **unguided)).memory.passing["update"] == update


def test_trees_are_left_out_and_said_to_be(tmp_path):
    kept, none = (make_plan(config_of(tmp_path, track={"trees": trees})) for trees in ({}, None))
    (note,) = set(kept.notes) - set(none.notes)
    assert "Left out" in note and "track.trees" in note and note in plan_text(kept) and note not in plan_text(none)
    assert kept.network_evaluations == none.network_evaluations and kept.decodes == none.decodes


def test_lora_parameters_are_what_peft_makes(tmp_path, monkeypatch):
    from diffusers import SD3Transformer2DModel
    from peft import LoraConfig

    network = SD3Transformer2DModel(
        sample_size=4, patch_size=2, in_channels=3, num_layers=3, attention_head_dim=8, num_attention_heads=2,
        joint_attention_dim=11, caption_projection_dim=16, pooled_projection_dim=13, out_channels=3,
        pos_embed_max_size=4,
    )  # fmt: skip
    network.save_pretrained(tmp_path / "transformer")
    config = config_of(tmp_path, model={"lora": {"rank": 5, "alpha": 7}})
    plan, whole = make_plan(config), count(network)
    network.add_adapter(LoraConfig(r=5, lora_alpha=7, target_modules=list(config.model.lora_targets)))
    assert plan.memory.trained_parameters == count(network) - whole > 0
    assert plan.memory.frozen_parameters == {"transformer": whole}
    assert plan.memory.kept["frozen components"] == 4 * 16 * 16  # the fixed position table, which is no parameter
    assert plan.memory.kept["reference"] == 0
    sizes, why = activations_of(config)
    assert sizes is None and "config files" in why  # there is no VAE here
    monkeypatch.setattr(plan_module, "activations_of", activations_of)
    unknown = make_plan(config)
    assert unknown.memory.passing == {} and why in unknown.notes[0] and unknown.flops is None


FLUX = {"family": "flux", "path": "black-forest-labs/FLUX.1-dev", "dtype": "bfloat16", "height": 512, "width": 512}
LORA = {"rank": 16, "alpha": 16}
WAN = {"family": "wan", "path": "Wan-AI/Wan2.2-T2V-A14B-Diffusers", "dtype": "bfloat16", "lora": LORA}


def memory_of(model, world_size=1, **changes):
    return make_plan(config_of(model=model, objective={"kl": 0.0}, **changes), world_size).memory


def test_a_published_model_is_planned_without_its_files():
    memory = memory_of(FLUX | {"lora": LORA})
    encoders = 123_060_480 + 4_762_310_656
    assert memory.frozen_parameters["transformer"] == 11_901_408_320
    assert memory.kept["frozen components"] == 2 * (encoders + 83_819_683)
    # 19 blocks of 8 projections of 3072 x 3072 and 38 of 3, each with 16 x (3072 + 3072) numbers
    assert memory.trained_parameters == (19 * 8 + 38 * 3) * 16 * 2 * 3072


def test_a_quantised_base_leaves_the_excluded_layers():
    modulation = (19 * 2 * 6 + 38 * 3) * 3072 * 3072  # of 3072 x (6 or 3) 3072
    base = 4 * memory_of(FLUX | {"lora": LORA}).trained_parameters
    whole, quarter = (
        memory_of(FLUX | {"lora": LORA, "base_precision": precision}).kept["policy weights"] - base
        for precision in (None, "nf4")
    )
    rest = 11_901_408_320 - modulation
    assert whole == 2 * 11_901_408_320
    assert quarter == pytest.approx(2 * modulation + rest * (0.5 + 1 / 64), rel=0.02)  # embedders are small


def test_offloaded_parts_come_one_after_another():
    here, away = memory_of(FLUX | {"lora": LORA}), memory_of(FLUX | {"lora": LORA, "offload": ["text_encoders", "vae"]})
    encoders, vae = 2 * (123_060_480 + 4_762_310_656), 2 * 83_819_683
    assert here.host.kept["offloaded parts"] == 0
    assert away.host.kept["offloaded parts"] == encoders + vae == here.kept["frozen components"]
    assert away.kept["frozen components"] == 0
    assert away.passing["prompts"] == encoders and away.passing["decode"] == here.passing["decode"] + vae
    assert "offloaded parts" in plan_text(make_plan(config_of(model=FLUX | {"offload": ["vae"]})))


def test_slices_tiles_and_the_decoders_precision():
    for choice, decode in (({}, 3 * 40_009), ({"vae_slicing": True}, 40_009), ({"vae_tiling": True}, 3 * 10_007)):
        assert memory_of(FLUX | {"lora": LORA} | choice).passing["decode"] == decode
    fine = memory_of(FLUX | {"lora": LORA, "vae_dtype": "float32"}).kept["frozen components"]
    assert fine - memory_of(FLUX | {"lora": LORA}).kept["frozen components"] == 2 * 83_819_683


def test_two_networks_train_and_a_rollout_is_counted_in_latents():
    memory = memory_of(WAN | {"height": 240, "width": 416, "frames": 33})
    networks = 2 * 14_288_491_584
    assert memory.kept["policy weights"] == 4 * memory.trained_parameters + 2 * networks
    assert memory.trained_parameters == 2 * 40 * 2 * 4 * 16 * 2 * 5120  # blocks, attentions, projections
    assert set(memory.frozen_parameters) == {"transformer", "transformer_2", "vae", "text_encoder"}
    assert memory.kept["frozen components"] == 2 * 5_680_910_336 + 4 * 126_892_531  # the decoder stays float32
    assert memory.kept["samples and steps"] == 150 * 4 * SIZES.latents + 10_440
    assert memory.host.kept["decoded images"] == 30 * 3 * SIZES.pixels
    halved = memory_of(WAN | {"height": 240, "width": 416, "frames": 33}, rollout={"latents_dtype": "bfloat16"})
    assert memory.kept["samples and steps"] - halved.kept["samples and steps"] == 120 * 2 * SIZES.latents


def test_ranks_share_the_weights_if_they_are_sharded():
    whole = memory_of(FLUX, world_size=2)
    shared = memory_of(FLUX, world_size=2, train={"sharding": "fsdp"})
    assert memory_of(FLUX, train={"sharding": "fsdp"}).kept == memory_of(FLUX).kept
    for name in ("policy weights", "gradients", "optimiser"):
        assert shared.kept[name] * 2 == whole.kept[name]
    assert shared.kept["frozen components"] == whole.kept["frozen components"]
    assert shared.passing["update"] - whole.passing["update"] == 2 * 4 * 11_901_408_320 // 57  # two gathered blocks


@pytest.mark.parametrize(("precision", "size"), [("bfloat16", 2), ("fp8", 1), ("int8", 1), ("nvfp4", 0.5625)])
def test_the_exploring_copy_has_its_precisions_bytes(precision, size):
    def memory(device="auto", **changes):
        explore = {"precision": precision, "candidates": 10, "keep": 5} | changes
        return memory_of(FLUX | {"lora": LORA, "device": device}, rollout={"explore": explore})

    def copy(**changes):
        return memory(**changes).kept["low-precision copy"]

    modulation = (19 * 2 * 6 + 38 * 3) * 3072 * 3072
    assert copy() == pytest.approx(2 * modulation + size * (11_901_408_320 - modulation), rel=0.02)
    if precision != "bfloat16":
        assert copy(engine="emulated") == 2 * 11_901_408_320  # of bfloat16, as is what is around
        assert copy(engine="emulated", device="cpu") == 4 * 11_901_408_320
        wherever = memory(engine="emulated")
        host = replace(wherever, copy_on_cpu=0).needed("cpu") - wherever.needed("cuda")
        assert wherever.needed("cpu") - wherever.needed("cuda") == 2 * 11_901_408_320 + host


def test_no_memory_estimate_is_said_so():
    plan = make_plan(config_of("some/hub-name"))
    assert plan.memory is None and "No memory estimate: some/hub-name is neither" in plan_text(plan)


SHORT = save({"weight": torch.zeros(4)})[:-1]


@pytest.mark.parametrize(
    "content", [b"", b"\x05", (2**40).to_bytes(8, "little") + b"{}", b"\x03" + bytes(7) + b"{x}", SHORT]
)
def test_a_torn_file_is_one_clear_error(tmp_path, content):
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match="must be a safetensors file"):
        header_shapes(path)
