"""Every family's adapter against its stock pipeline, on tiny random weights."""

import copy
import importlib
import inspect
from functools import cache

import numpy as np
import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler
from PIL import Image

from diffrl.cost.cuda_rules import cuda_rules
from diffrl.errors import ConfigError
from diffrl.models.dry import dry_adapter
from diffrl.models.families import FAMILIES, find_family
from diffrl.models.families.qwen_image_edit import STOCK as QWEN_IMAGE_EDIT
from diffrl.models.loading import load_adapter
from diffrl.models.published import published_pipelines
from diffrl.models.tiny import tiny_settings
from tests.edits import encoded
from tests.edits import euler as reach
from tests.models.unlike import unlike
from tests.tiers import daily

PROMPTS = ["a red circle", "two blue squares above a green triangle", "a black circle"]
STEPS = 5
GREY = Image.new("RGB", (32, 32), (128, 128, 128))
GUIDED_BY_A_TEXT = [
    name
    for name, facts in FAMILIES.items()
    if facts.guidance == "classifier_free" and facts.negative_prompt is not None
]
PAIRS = [(guided, family) for guided in (True, False) for family in FAMILIES]
PAIRS += [("blue", family) for family in GUIDED_BY_A_TEXT]  # away from this
EVERY_DAY = [(guided, family) for guided, family in PAIRS if guided is True or family in ("sd3", "flux")]
RARE = [(guided, family) for guided, family in PAIRS if guided is False and family not in ("sd3", "flux", "wan")]
RARE += [("blue", family) for family in GUIDED_BY_A_TEXT if family not in ("sd3", "flux", "wan", "qwen_image_edit")]
"""Without guidance the same network is called once; away from a text it is called as away from an empty one."""
MULTISTEP = ("sana", "wan", "wan_i2v")
"""Families whose stock scheduler is a multi-step solver; their networks are compared under Euler."""


def load(random_pipelines, family, **options):
    return load_adapter(family, str(random_pipelines(family)), dtype="float32", device=torch.device("cpu"), **options)


@pytest.fixture(scope="module")
def loaded(random_pipelines):
    """A family's adapter, loaded once for all tests that only read it."""
    return cache(lambda family: load(random_pipelines, family))


def normal(adapter, count, seed=5):
    return adapter.init_latents(lambda shape: torch.randn(count, *shape, generator=torch.Generator().manual_seed(seed)))


def euler(adapter, latents, guidance_scale, steps=STEPS):
    return reach(adapter, latents, encoded(adapter, PROMPTS), guidance_scale, steps)


@pytest.mark.parametrize("family", FAMILIES)
def test_without_weights_an_adapter_has_the_sizes_and_noise_levels_and_refuses_the_same(
    random_pipelines, loaded, family
):
    path, full = str(random_pipelines(family)), loaded(family)
    dry = dry_adapter(family, FAMILIES[family], path)
    assert dry.latent_shape == full.latent_shape
    assert torch.equal(dry.sigmas(STEPS), full.sigmas(STEPS))
    with pytest.raises(ConfigError, match="multiples of") as early:
        dry_adapter(family, FAMILIES[family], path, height=33)
    with pytest.raises(ConfigError) as late:
        load(random_pipelines, family, height=33)
    assert str(early.value) == str(late.value)


@pytest.mark.parametrize("path", published_pipelines())
def test_of_a_published_pipeline_the_sizes_are_known_without_its_files(path):
    published = published_pipelines()[path]
    (family,) = (known for known in FAMILIES.values() if published.name in known.pipelines)
    dry = dry_adapter(family.name, family, path)
    vae = published.components["vae"].config
    assert dry.latent_shape[0] == vae.get("z_dim", vae.get("latent_channels")) and dry.sigmas(4).diff().max() < 0


@pytest.mark.parametrize(("guided", "family"), daily(PAIRS, EVERY_DAY, RARE))
def test_ode_and_decoding_equal_the_stock_pipeline_from_the_same_latents(random_pipelines, family, guided, monkeypatch):
    monkeypatch.setattr(importlib.import_module(QWEN_IMAGE_EDIT), "VAE_IMAGE_SIZE", 32 * 32)
    negative = guided if isinstance(guided, str) else None
    adapter = load(random_pipelines, family, negative_prompt=negative)
    latents, guidance_scale, stock_call = stock_of(adapter, guided, STEPS, negative)
    with torch.no_grad():
        reached = euler(adapter, latents, guidance_scale)
        if negative:  # an empty one, which every family's own tests compare, would reach something else
            assert not torch.equal(reached, euler(load(random_pipelines, family), latents, guidance_scale))
        stock, pictures = stock_call("latent"), stock_call("np")
    ours = reached if reached.shape == stock.shape else adapter.unpack(reached)  # some hand out what the decoder takes
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-5)
    assert (reached - latents).abs().mean() > 0.1
    decoded = adapter.decode(reached)
    pictures = unlike(family).pictures(pictures)
    expected = torch.from_numpy((pictures * 255).round().astype("uint8")).movedim(-1, -3)
    assert decoded.dtype == torch.uint8 and decoded.shape == expected.shape
    assert (decoded.int() - expected.int()).abs().max() <= 1
    assert decoded.float().std() > 1


def stock_options(adapter, guidance_scale, steps):
    """Arguments by which the stock pipeline draws `PROMPTS` as small as the tiny pipeline does."""
    facts, settings = adapter.family, tiny_settings(adapter.pipeline)
    options = {"height": 32, "width": 32, "num_inference_steps": steps}
    options |= {"max_sequence_length": adapter.max_sequence_length}
    for name, value in facts.stock_options:  # a text for every prompt of a call
        options[name] = [value] * len(PROMPTS) if isinstance(value, str) and not facts.edits else value
    options[facts.guidance_argument] = guidance_scale + facts.guidance_offset
    if facts.media == "video":
        options["num_frames"] = settings["frames"]
    return options | ({"image": GREY, **adapter.stock_call()} if facts.edits else {})


def stock_of(adapter, guided, steps, negative=None):
    """Latents, the scale of guidance, and a call of the stock pipeline that begins with them, by type of output."""
    facts, pipeline = adapter.family, adapter.pipeline
    family = facts.name
    if family in MULTISTEP:
        pipeline.scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    latents, guidance_scale = normal(adapter, len(PROMPTS)), 4.5 if guided else 1.0
    options = stock_options(adapter, guidance_scale, steps)
    if negative is not None:
        options["negative_prompt"] = negative if facts.edits else [negative] * len(PROMPTS)
    field = "frames" if facts.media == "video" else "images"
    for name, line in facts.stock_lines:  # what is no argument of the call
        exec(line.format(options.pop(name)), {"pipeline": pipeline})

    def call(output_type):
        start = unlike(family).stock_latents(latents)
        given = copy.deepcopy(options)  # Z-Image's pipeline writes its chat template into the list of texts
        given |= {"prompt": list(PROMPTS), "latents": start.clone(), "output_type": output_type}
        if not unlike(family).alone:
            return getattr(pipeline(**given), field)
        given |= {name: text[0] for name, text in given.items() if isinstance(text, list)}
        calls = ({**given, "prompt": p, "latents": s[None]} for p, s in zip(PROMPTS, start.clone(), strict=True))
        drawn = [pipeline(**call).images for call in calls]
        return torch.cat(drawn) if output_type == "latent" else np.concatenate(drawn)

    return latents, guidance_scale, call


@pytest.mark.parametrize("family", daily(FAMILIES, ["sd3", "flux", "wan"]))
def test_in_bfloat16_the_network_gives_what_it_gives_the_stock_pipeline(random_pipelines, family, monkeypatch):
    """By CUDA's rules of autocast, which the stock pipeline never meets: it has none."""
    monkeypatch.setattr(importlib.import_module(QWEN_IMAGE_EDIT), "VAE_IMAGE_SIZE", 32 * 32)
    adapter = load_adapter(family, str(random_pipelines(family)), dtype="bfloat16")
    latents, _, stock_call = stock_of(adapter, False, 2)
    known, given = unlike(family), []
    adapter.transformer.register_forward_hook(lambda network, inputs, output: given.append(output[0]))
    with torch.no_grad(), cuda_rules():
        adapter.velocity(latents, adapter.sigmas(2)[:1].expand(len(latents)), encoded(adapter, PROMPTS), 1.0)
        ours = known.output(given[0])
        given.clear()
        stock_call("latent")
        seen = given[::2] if known.alone else given[:1]  # of two steps the first, of each call
        stock = known.output(seen[0]) if len(seen) == 1 else torch.cat([known.output(one) for one in seen])
    assert ours.dtype == stock.dtype == torch.bfloat16
    assert (ours - stock).norm() <= known.rounding * stock.norm()


@pytest.mark.parametrize("family", FAMILIES)
def test_guidance_costs_what_the_family_says(loaded, family):
    adapter = loaded(family)
    conditioning = encoded(adapter, PROMPTS[:2])
    rows = []
    hook = adapter.transformer.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(len(kwargs.get("hidden_states", args[0] if args else None))),
        with_kwargs=True,
    )
    latents, facts = normal(adapter, 2), find_family(family)
    plain, guided = (adapter.velocity(latents, torch.full((2,), 0.7), conditioning, g) for g in (1.0, 4.0))
    hook.remove()
    assert rows == [2 * facts.calls_per_step(1.0), 2 * facts.calls_per_step(4.0)]
    assert not torch.allclose(plain, guided)


@pytest.mark.parametrize("family", FAMILIES)
def test_rows_do_not_depend_on_their_batch(loaded, family):
    adapter = loaded(family)
    conditioning = encoded(adapter, PROMPTS)
    latents, sigma = normal(adapter, 3, seed=7), torch.tensor([0.9, 0.5, 0.1])
    with torch.no_grad():
        together = adapter.velocity(latents, sigma, conditioning, 3.0)
        for i in range(3):
            alone = adapter.velocity(latents[i : i + 1], sigma[i : i + 1], encoded(adapter, PROMPTS[i : i + 1]), 3.0)
            torch.testing.assert_close(alone, together[i : i + 1], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(together[0], together[1])


@pytest.mark.parametrize("family", FAMILIES)
def test_grids_begin_with_pure_noise_and_end_without(loaded, family):
    adapter = loaded(family)
    for steps in (2, 7):
        sigmas = adapter.sigmas(steps)
        assert sigmas.shape == (steps + 1,) and sigmas.dtype == torch.float32
        assert sigmas[0] == 1.0 and sigmas[-1] == 0.0 and (sigmas[1:] < sigmas[:-1]).all()


@pytest.mark.parametrize("family", MULTISTEP)
def test_a_multi_step_schedulers_levels_are_its_own_but_for_the_first(loaded, family):
    adapter = loaded(family)
    scheduler = copy.deepcopy(adapter.pipeline.scheduler)
    scheduler.set_timesteps(7)
    ours = adapter.sigmas(7)
    assert 0.99 < scheduler.sigmas[0] < 1 and torch.equal(ours[1:], scheduler.sigmas[1:])
    # Shifted by 3: what evenly spaced levels become (esser et al., arXiv 2403.03206).
    even = torch.linspace(0.999, 0.0, 8, dtype=torch.float64)[1:-1]
    torch.testing.assert_close(ours[1:-1].double(), 3 * even / (1 + 2 * even), rtol=1e-2, atol=0)


def test_flux_shifts_by_the_number_of_picture_tokens(random_pipelines):
    small, large = (load(random_pipelines, "flux", height=size, width=size) for size in (32, 96))
    stock = FlowMatchEulerDiscreteScheduler.from_config(small.pipeline.scheduler.config)
    mu = 0.5 + (24 * 24 / 4 - 256) * (1.15 - 0.5) / (4096 - 256)
    stock.set_timesteps(sigmas=[1.0, 0.75, 0.5, 0.25], mu=mu)
    torch.testing.assert_close(large.sigmas(4), stock.sigmas, rtol=1e-6, atol=0)
    assert (large.sigmas(4)[1:-1] > small.sigmas(4)[1:-1]).all()


def test_sana_puts_its_instruction_before_the_prompt_and_not_before_the_empty_one(loaded):
    adapter = loaded("sana")
    default = inspect.signature(type(adapter.pipeline).__call__).parameters["complex_human_instruction"].default
    stock = adapter.pipeline.encode_prompt(
        PROMPTS, max_sequence_length=adapter.max_sequence_length, complex_human_instruction=default
    )
    without = adapter.pipeline.encode_prompt(PROMPTS, max_sequence_length=adapter.max_sequence_length)
    ours = adapter.encode_prompts(PROMPTS)
    torch.testing.assert_close(ours["prompt_embeds"], stock[0], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours["negative_prompt_embeds"], stock[2], rtol=1e-4, atol=1e-5)
    assert not torch.allclose(ours["prompt_embeds"], without[0])


@pytest.fixture(scope="module")
def wan22(tmp_path_factory):
    """Wan 2.2: two transformers, the second for timesteps below 875."""
    from diffrl.models.tiny import build_pipeline, save_pipeline

    folder = tmp_path_factory.mktemp("pipelines") / "wan22"
    save_pipeline(
        build_pipeline("wan", ["a", "red", "green", "blue", "circle", "square", "above"], seed=0, boundary_ratio=0.875),
        folder,
    )
    return folder


def test_wan22_uses_the_network_of_each_noise_level_as_the_stock_pipeline_does(wan22):
    adapter = load_adapter("wan", str(wan22), dtype="float32", device=torch.device("cpu"))
    adapter.pipeline.scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    sigmas = adapter.sigmas(STEPS)
    assert (sigmas[:-1] >= 0.875).any() and (sigmas[:-1] < 0.875).any()
    assert set(adapter.trainable_modules()) == {"transformer", "transformer_2"}
    latents = normal(adapter, len(PROMPTS))
    options = stock_options(adapter, 5.0, STEPS)
    with torch.no_grad():
        ours = euler(adapter, latents, 5.0)
        stock = adapter.pipeline(list(PROMPTS), latents=latents.clone(), output_type="latent", **options).frames
        torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-5)
        conditioning = adapter.encode_prompts(PROMPTS)
        mixed = adapter.velocity(latents, torch.tensor([0.9, 0.2, 0.875]), conditioning, 5.0)
        for i, sigma in enumerate((0.9, 0.2, 0.875)):
            alone = adapter.velocity(latents, torch.full((3,), sigma), conditioning, 5.0)
            torch.testing.assert_close(mixed[i], alone[i], rtol=1e-4, atol=1e-5)


def test_wan22_ti2v_gets_a_noise_level_for_every_token(random_pipelines):
    adapter = load(random_pipelines, "wan")
    adapter.pipeline.scheduler = FlowMatchEulerDiscreteScheduler(shift=3.0)
    adapter.pipeline.register_to_config(expand_timesteps=True)
    latents = normal(adapter, len(PROMPTS))
    options = stock_options(adapter, 5.0, STEPS)
    with torch.no_grad():
        ours = euler(adapter, latents, 5.0)
        stock = adapter.pipeline(list(PROMPTS), latents=latents.clone(), output_type="latent", **options).frames
    torch.testing.assert_close(ours, stock, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["sd3", "wan_i2v", "qwen_image_edit"])
def test_offloaded_parts_rest_on_the_cpu_and_give_the_same(random_pipelines, loaded, family):
    from diffrl.models.placement import Placement

    plain = loaded(family)
    placement = Placement(offload=("text_encoders", "vae"), vae_slicing=True)
    other = load_adapter(family, str(random_pipelines(family)), dtype="float32", placement=placement)
    moved = encoded(other, PROMPTS)
    for name, tensor in encoded(plain, PROMPTS).items():  # its empty prompt may have been encoded in another batch
        torch.testing.assert_close(moved[name], tensor, rtol=1e-4, atol=1e-5)
    latents = normal(plain, 3)
    one_by_one = torch.cat([plain.decode(latents[i : i + 1]) for i in range(3)])  # as sliced: the same shapes
    assert (one_by_one.int() - other.decode(latents).int()).abs().max() <= 1


def test_frames_that_the_decoder_does_not_have(random_pipelines):
    from diffrl.errors import ConfigError

    with pytest.raises(ConfigError, match="model.frames must be a multiple of 4, plus 1. Got 8. Take 9."):
        load(random_pipelines, "wan", frames=8)
