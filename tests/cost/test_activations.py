"""What is counted on fake tensors, against adapters with real ones, torch's own counter and networks of all blocks."""

import json
from pathlib import Path

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from diffrl.bundled import recipes
from diffrl.config import load_config
from diffrl.config.model import ModelSettings
from diffrl.cost import activations, counting
from diffrl.cost.activations import activations_of, count_blocks, user_plans, with_blocks
from diffrl.cost.live_memory import like_cuda
from diffrl.models.families import FAMILIES
from diffrl.models.loading import load_adapter
from diffrl.models.lora import add_lora
from diffrl.models.published import find_pipeline, published_pipeline
from tests.edits import LONG, encoded
from tests.tiers import daily

ROOT = Path(__file__).parents[2]
CLOSE = 0.05
LORA = {"rank": 4, "alpha": 4}
SIZES = {name: {"height": 64, "width": 32} | ({"frames": 9} if FAMILIES[name].fps else {}) for name in FAMILIES}
SIZES["sd3"] = {"height": 32, "width": 16}  # its position table is small


def counted(family, path, lora=None, **options):
    model = ModelSettings(family=family, path=str(path), lora=lora)
    return counting.count_activations(model, find_pipeline(str(path)), options, checkpointing=False)


@pytest.mark.parametrize("family", daily(SIZES, ["sd3", "wan"]))
def test_sizes_operations_and_graph_are_the_adapters(family, random_pipelines):
    """With LoRA. The graph: of real tensors in float32, weights left out; a CPU's norms are not one kernel."""
    path = random_pipelines(family)
    options = SIZES[family] | {"max_sequence_length": 512 if family == "wan_i2v" else 23}
    adapter = load_adapter(family, str(path), dtype="float32", device=torch.device("cpu"), **options)
    add_lora(adapter.transformer, 4, 4, FAMILIES[family].lora_targets, 0)
    sizes = counted(family, path, LORA, **options)

    latents = adapter.init_latents(lambda shape: torch.randn(1, *shape))
    conditioning = encoded(adapter, [LONG])
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter:
        adapter.velocity(latents, torch.tensor([0.7]), conditioning, 1.0)
    assert sizes.latents == latents.numel()
    assert sizes.pixels * 3 == adapter.decode(latents).numel()
    assert sizes.encoding == sum(tensor.numel() for tensor in conditioning.values())
    assert sizes.flops == pytest.approx(counter.get_total_flops(), rel=1e-3)

    modules = list(adapter.transformer.modules())
    own = [*adapter.transformer.parameters(), *adapter.transformer.buffers()]
    own += [one for module in modules for one in vars(module).values() if isinstance(one, torch.Tensor)]  # tables
    weights = {tensor.untyped_storage().data_ptr() for tensor in own}
    encodings, kept = encoded(adapter, [LONG, LONG]), {}
    full = {name: torch.ones_like(one) if name.endswith("mask") else one for name, one in encodings.items()}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        adapter.velocity(latents.expand(2, *latents.shape[1:]).clone(), torch.tensor([0.7, 0.7]), full, 1.0)
    assert sizes.graph.of(2) == pytest.approx(sum(storage.nbytes() for storage in kept.values()), rel=0.15)


def test_counting_leaves_torch_as_it_was(random_pipelines):
    """Random numbers, autocast's rules, and results to the last bit."""

    def computed():
        torch.manual_seed(7)
        x = torch.randn(3, 5)
        with torch.autocast("cpu", torch.bfloat16):
            normed = torch.nn.functional.layer_norm(torch.nn.functional.linear(x, x), (3,))
        return normed.dtype, normed, torch.nn.functional.rms_norm(x, (5,)), torch.nn.Linear(5, 3).double().weight

    before, state = computed(), torch.get_rng_state()
    counted("sd3", random_pipelines("sd3"), **SIZES["sd3"])
    assert torch.equal(torch.get_rng_state(), state) and torch.get_default_dtype() == torch.float32
    for old, new in zip(before, computed(), strict=True):
        assert old == new if isinstance(old, torch.dtype) else torch.equal(old, new) and old.dtype == new.dtype


@pytest.mark.long
def test_a_wide_lora_holds_what_passes_between_its_halves(random_pipelines):
    """Of six layers that both streams of a joint block pass, rank numbers a token."""
    path = random_pipelines("sd3")
    narrow, wide = (counted("sd3", path, LORA | {"rank": rank}, **SIZES["sd3"]) for rank in (4, 1004))
    assert wide.graph.each > narrow.graph.each + 1000 * 4 * 4 and wide.forward.each > narrow.forward.each


DEEP = ["sd3/flow_grpo", "flux2_klein/flow_grpo", "sana/flow_grpo", "flux/dance_grpo"]


def whole(config, samples):
    """Count a call of the network with all of its blocks."""
    pipeline, m = find_pipeline(config.model.path), config.model
    network = pipeline.components["transformer"].config
    options = {name: value for name, value in m.options.items() if value is not None}
    with like_cuda() as memory:
        calls = counting._Calls(memory, m, pipeline, options, torch.bfloat16, config.train.gradient_checkpointing)
        figures = calls.count(with_blocks(network, count_blocks(network)), (samples,))
    return {name: 2 * figures[name].each for name in ("graph", "update")}  # of one count of samples: halved


@pytest.mark.parametrize("recipe", daily(DEEP, [], set(DEEP) - {"sd3/flow_grpo"}))
def test_what_further_blocks_add_is_what_they_hold(recipe):
    """Of three samples, with LoRA and of a full fine-tune, most of whose bytes are autocast's copies of the weights."""
    config = load_config(ROOT / f"configs/{recipe}.yaml")
    sizes, _ = activations_of(config)
    for name, held in whole(config, 3).items():
        assert getattr(sizes, name).of(3) == pytest.approx(held, rel=CLOSE), name


def test_operations_of_sd3_are_below_those_of_all_tokens_through_all_weights():
    sizes, _ = activations_of(load_config(ROOT / "configs/sd3/flow_grpo.yaml"))
    assert 1e12 < sizes.flops < 2 * 2.5e9 * (1024 + 333)


def test_blocks_are_counted_by_kind():
    medium = published_pipeline("stabilityai/stable-diffusion-3.5-medium").components["transformer"].config
    assert count_blocks(medium) == {"num_layers": 11, "dual": 13}
    assert with_blocks(medium, {"num_layers": 2, "dual": 3}) == {"num_layers": 5, "dual_attention_layers": (0, 1, 2)}


def refuse(*given):
    raise AssertionError("it is counted anew")


def test_every_recipe_is_planned_from_its_file(monkeypatch):
    monkeypatch.setattr(counting, "count_activations", refuse)
    for name, file in recipes().items():
        sizes, why = activations_of(load_config(file))
        assert sizes is not None, (name, why)


UP_TO_DATE = ["quickstart", "wan/flow_grpo", "sd3/flow_grpo", "flux/24gb"]
"""That of sd3 is read and held to a count by the test of its blocks too."""


@pytest.mark.parametrize("recipe", daily(UP_TO_DATE, UP_TO_DATE[:1], UP_TO_DATE[2:]))
def test_the_files_are_up_to_date(recipe, monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    from make_plans import strayed

    assert not strayed(load_config(recipes()[recipe]))


@pytest.mark.long
def test_another_size_is_counted_once(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    activations._known.cache_clear()
    config = load_config(recipes()["quickstart"], ["model.height=32", "model.width=16"])
    first, _ = activations_of(config)
    (file,) = user_plans().glob("*.json")
    assert first.pixels == 512 and json.loads(file.read_text())["pipeline"] == "assets/tiny-sd3"
    with monkeypatch.context() as patched:
        patched.setattr(counting, "count_activations", refuse)
        assert activations_of(config)[0] == first
    file.write_text('{"plans": [')  # torn: counted again
    activations._known.cache_clear()
    assert activations_of(config)[0] == first
    activations._known.cache_clear()
