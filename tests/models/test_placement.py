"""How a pipeline's parts are run: attention backends, compilation, tiling, kept encodings, and what is refused."""

import pytest
import torch

from diffrl.errors import ConfigError
from diffrl.models.encodings import PromptEncodings
from diffrl.models.families import FAMILIES
from diffrl.models.loading import load_adapter
from diffrl.models.pipeline import EMPTY
from diffrl.models.placement import Placement, block_gradients, repeated_blocks, set_attention
from diffrl.records import Prompt
from diffrl.rollout.regenerate import decode
from tests.edits import encoded
from tests.tiers import daily

PROMPTS = ["a red circle", "two blue squares"]


def load(folder, family="sd3", **placement):
    return load_adapter(family, str(folder), dtype="float32", placement=Placement(**placement))


def velocities(adapter, count=2):
    latents = adapter.init_latents(lambda shape: torch.randn(count, *shape, generator=torch.Generator().manual_seed(1)))
    with torch.no_grad():
        return adapter.velocity(latents, torch.full((count,), 0.6), encoded(adapter, PROMPTS[:count]), 3.0)


@pytest.mark.parametrize("family", daily(FAMILIES, ["sd3", "sana", "wan"]))
def test_another_attention_backend_gives_the_same_velocities_and_really_runs(random_pipelines, family, monkeypatch):
    from torch.nn.attention import SDPBackend

    folder = random_pipelines(family)
    expected = velocities(load(folder, family))
    kernels = []
    enter = torch.nn.attention.sdpa_kernel

    def watched(backends, *args, **kwargs):
        kernels.append(backends)
        return enter(backends, *args, **kwargs)

    monkeypatch.setattr(torch.nn.attention, "sdpa_kernel", watched)
    found = velocities(load(folder, family, attention="_native_math"))
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
    assert SDPBackend.MATH in kernels


@pytest.mark.parametrize("family", ["sd3", "sana"])
def test_gradients_pass_another_backend_with_and_without_checkpointing(random_pipelines, family):
    """Of families whose processors ask PyTorch themselves; the second forward of checkpointing is dispatched too."""
    found = []
    for attention, again in ((None, False), ("_native_math", False), ("_native_math", True)):
        adapter = load(random_pipelines(family), family, attention=attention)
        network = adapter.transformer.requires_grad_(True)
        if again:
            network.enable_gradient_checkpointing()
        latents = adapter.init_latents(lambda s: torch.randn(2, *s, generator=torch.Generator().manual_seed(1)))
        adapter.velocity(latents, torch.full((2,), 0.6), adapter.encode_prompts(PROMPTS), 3.0).square().sum().backward()
        found.append([parameter.grad for parameter in network.parameters() if parameter.grad is not None])
    for gradients in found[1:]:
        torch.testing.assert_close(gradients, found[0], rtol=1e-3, atol=1e-4)


def test_attention_that_no_backend_can_reach():
    class Other(torch.nn.Module):
        def set_attention_backend(self, name):
            """Nothing in it has a processor."""

    with pytest.raises(ConfigError, match="the attention of a Other always goes through PyTorch"):
        set_attention(Other(), "_native_math")
    set_attention(Other(), "native")


@pytest.mark.parametrize("name", ["_native_cudnn", "_native_efficient"])
def test_a_backend_that_does_not_run_on_this_device(random_pipelines, name):
    with pytest.raises(ConfigError, match=f"model.attention '{name}' cannot be used on cpu in float32: .*native"):
        load(random_pipelines("flux"), "flux", attention=name)


def test_a_backend_without_a_backward_pass(random_pipelines, monkeypatch):
    from diffusers.models import attention_dispatch

    monkeypatch.setattr(attention_dispatch, "dispatch_attention_fn", lambda q, k, v, **kw: (q + k + v).detach())
    with pytest.raises(
        ConfigError, match="cannot be used on cpu in float32: element 0 of tensors does not require grad"
    ):
        load(random_pipelines("flux"), "flux", attention="_native_math")


@pytest.mark.parametrize("family", ["sd3", "flux_kontext"])
def test_a_backend_that_a_block_cannot_use_is_refused_before_the_first_call(random_pipelines, family, monkeypatch):
    """Its heads are those of other networks, as with kernels that take multiples of 8, or 64 and 128, alone."""
    from diffusers.models.attention_dispatch import AttentionBackendName, _AttentionBackendRegistry

    backends, name = _AttentionBackendRegistry._backends, AttentionBackendName._NATIVE_MATH
    whole = backends[name]

    def picky(query, key, value, **options):
        if query.shape[-1] != 64:
            raise RuntimeError(f"heads of 64 alone, not of {query.shape[-1]}")
        return whole(query, key, value, **options)

    monkeypatch.setitem(backends, name, picky)
    with pytest.raises(ConfigError, match="'_native_math' cannot be used on cpu in float32: heads of 64 alone, not of"):
        load(random_pipelines(family), family, attention="_native_math")


@pytest.mark.parametrize("family", daily(FAMILIES, ["sd3", "flux"]))
def test_blocks_of_every_kind_are_run_backward_and_leave_nothing(random_pipelines, family, monkeypatch):
    adapter = load(random_pipelines(family), family)
    state = torch.get_rng_state()
    kinds, ran = {type(block) for block in repeated_blocks(adapter.transformer)}, set()
    for kind in kinds:
        forward = kind.forward
        monkeypatch.setattr(
            kind,
            "forward",
            lambda *a, kind=kind, forward=forward, **kw: (
                (torch.is_grad_enabled() and ran.add(kind)) or forward(*a, **kw)
            ),
        )
    found = block_gradients(adapter.transformer, adapter._call_once)
    assert found and all(torch.isfinite(gradient).all() for gradient in found)
    assert all(parameter.grad is None for parameter in adapter.transformer.parameters())
    assert not adapter.empty_prompt_cached and torch.equal(torch.get_rng_state(), state)
    assert ran == kinds


def prompts(letters):
    return [Prompt(letter) for letter in letters]


def test_offloaded_encoders_travel_once_for_all_new_prompts(random_pipelines):
    adapter = load(random_pipelines("flux"), "flux", offload=("text_encoders",))
    encoder, moves = adapter.pipeline.text_encoder_2, []
    move = encoder.to
    encoder.to = lambda device: moves.append(str(device)) or move(device)
    encode = PromptEncodings(adapter)
    encode(prompts("abc"))
    assert moves == ["cpu", "cpu"]  # there and back
    encode(prompts("ca"))
    assert len(moves) == 2


def test_an_offloaded_decoder_travels_once_for_all_calls(random_pipelines):
    adapter = load(random_pipelines("sd3"), offload=("vae",))
    vae, moves, given = adapter.pipeline.vae, [], []
    move = vae.to
    vae.to = lambda device: moves.append(str(device)) or move(device)
    latents = adapter.init_latents(lambda shape: torch.randn(5, *shape, generator=torch.Generator().manual_seed(2)))
    pictures = decode(adapter, latents, 2, ["a"] * 5, lambda some: given.append(len(moves)))
    assert moves == ["cpu", "cpu"] and given == [1, 1, 1]  # there, three calls, and back
    assert torch.equal(pictures, torch.cat([adapter.decode(latents[i : i + 2]) for i in (0, 2, 4)]))


@pytest.mark.parametrize("family", [name for name, facts in FAMILIES.items() if facts.masks_prompts])
@pytest.mark.parametrize("attention", ["_native_flash", "sage"])
def test_attention_without_masks_is_refused_where_prompts_are_masked(random_pipelines, family, attention):
    with pytest.raises(ConfigError, match=f"model.attention must be able to mask .* Got '{attention}'. Choose native"):
        load(random_pipelines(family), family, attention=attention)


@pytest.mark.parametrize("name", ["flash", "flash_hub"])
def test_a_backend_whose_package_is_missing(random_sd3, name):
    with pytest.raises(ConfigError, match=f"model.attention '{name}' cannot be used: .* Set model.attention: native."):
        load(random_sd3, attention=name)


def test_tiles_cover_the_picture(random_sd3):
    plain, tiled = load(random_sd3), load(random_sd3, vae_tiling=True, vae_slicing=True)
    assert tiled.pipeline.vae.use_tiling and tiled.pipeline.vae.use_slicing
    latents = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(2))
    assert plain.decode(latents).shape == tiled.decode(latents).shape == (2, 3, 32, 32)


def test_encodings_are_kept_within_their_bytes(random_sd3):
    adapter = load(random_sd3)
    asked = []
    encode = adapter.encode_prompts
    adapter.encode_prompts = lambda prompts: asked.extend(prompts) or encode(prompts)
    row = sum(t.numel() * t.element_size() for name, t in encode(["a"]).items() if not name.startswith(EMPTY))
    kept = PromptEncodings(adapter, capacity=2 * row)
    first = kept(prompts("ab"))
    assert asked == ["a", "b"] and all(len(tensor) == 2 for tensor in first.values())
    kept(prompts("ba"))
    assert asked == ["a", "b"]
    kept(prompts("c"))
    kept(prompts("b"))  # the one that was used longest ago is gone
    assert asked == ["a", "b", "c", "b"]
    assert torch.equal(kept(prompts("a"))["prompt_embeds"], first["prompt_embeds"][:1])


def test_the_empty_prompt_is_encoded_once_and_held_once(random_sd3):
    adapter, stock = load(random_sd3), load(random_sd3).pipeline
    length = adapter.max_sequence_length
    _, negative, _, pooled = stock.encode_prompt("a", None, None, max_sequence_length=length)
    read = []
    encoder = adapter.pipeline.text_encoder
    encoder.register_forward_pre_hook(lambda module, inputs: read.append(len(inputs[0])))
    kept = PromptEncodings(adapter)
    found = [kept(prompts("ab")), kept(prompts("c"))]
    assert sum(read) == 4  # three prompts and the empty one
    for one in found:
        for name, oracle in (("prompt_embeds", negative), ("pooled", pooled)):
            rows = one[EMPTY + name]
            assert torch.equal(rows, oracle.expand_as(rows)) and len(rows) == len(one[name])
    assert found[0][EMPTY + "prompt_embeds"].untyped_storage().nbytes() == negative.numel() * negative.element_size()
