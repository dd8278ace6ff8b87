"""Chains from noise to latents: Euler where nothing is stochastic, elsewhere densities of what is stored."""

import math
from contextlib import nullcontext

import pytest
import torch
from torch.distributions import Normal

from diffrl.models.loading import load_adapter
from diffrl.records import Prompt, PromptBatch
from diffrl.rollout.address import Address
from diffrl.rollout.denoise import denoise, take_edges
from diffrl.rollout.noise import noise_at
from diffrl.rollout.regenerate import decode, plan_chains, regenerate
from diffrl.transition import make_transition

PROMPTS = ["a red circle", "two blue squares", "a green triangle above a black circle"]
STEPS = 7
GRID = [*(1 - 0.999 * k / 6 for k in range(7)), 0.0]  # the tiny pipeline's scheduler: evenly to 0.001, then to 0
OPTIONS = {"flow_sde": {"noise_level": 0.7}, "dance_sde": {"eta": 0.3}, "cps": {"noise_level": 0.6}}


@pytest.fixture(scope="module")
def adapter(random_sd3):
    return load_adapter("sd3", str(random_sd3), dtype="float32", device=torch.device("cpu"))


@pytest.fixture(scope="module")
def conditioning(adapter):
    return adapter.encode_prompts(PROMPTS)


ROWS = torch.tensor([0, 0, 1, 1, 2])
ADDRESSES = [Address("train", 5, 2, group, root) for group, root in [(0, 0), (0, 1), (1, 0), (1, 1), (2, 0)]]


def draw(adapter, conditioning, stochastic=(), rows=ROWS, addresses=ADDRESSES, kind="flow_sde", **options):
    sigmas = adapter.sigmas(STEPS)
    transition = make_transition(kind, sigmas, **OPTIONS[kind])
    return denoise(
        adapter, conditioning, rows, addresses, sigmas=sigmas, transition=transition, stochastic=stochastic, **options
    )


def velocity(adapter, conditioning, x, sigma, prompt):
    row = {name: tensor[prompt : prompt + 1] for name, tensor in conditioning.items()}
    with torch.no_grad():
        return adapter.velocity(x[None], torch.tensor([float(sigma)]), row, 1.0)[0]


def euler(adapter, conditioning, x, k, prompt):
    return x - (GRID[k] - GRID[k + 1]) * velocity(adapter, conditioning, x, GRID[k], prompt)


def test_no_stochastic_steps_is_euler(adapter, conditioning):
    latents, edges = draw(adapter, conditioning)
    noise = noise_at(ADDRESSES, (4, 8, 8))
    for i, prompt in enumerate(ROWS.tolist()):
        x = noise[i]
        for k in range(STEPS):
            x = euler(adapter, conditioning, x, k, prompt)
        torch.testing.assert_close(latents[i], x, rtol=1e-4, atol=1e-5)
    assert (latents - noise).abs().mean() > 0.1
    assert len(edges) == 0 and edges.latents.shape == (0, 4, 8, 8) and edges.old_log_prob.shape == (0,)
    assert edges.step.dtype == edges.sample.dtype == torch.int64


def test_without_dynamics_nothing_is_stochastic(adapter, conditioning):
    sigmas = adapter.sigmas(STEPS)
    latents, edges = denoise(adapter, conditioning, ROWS, ADDRESSES, sigmas=sigmas, transition=None, stochastic=(1, 2))
    assert torch.equal(latents, draw(adapter, conditioning)[0]) and len(edges) == 0


def test_edges_know_where_they_come_from(adapter, conditioning):
    latents, edges = draw(adapter, conditioning, stochastic=(1, 2, 4))
    assert edges.step.tolist() == [1] * 5 + [2] * 5 + [4] * 5
    assert edges.sample.tolist() == [0, 1, 2, 3, 4] * 3
    assert edges.sigma.tolist() == pytest.approx([GRID[k] for k in edges.step.tolist()], rel=1e-5)
    assert edges.sigma_next.tolist() == pytest.approx([GRID[k + 1] for k in edges.step.tolist()], rel=1e-5)
    assert torch.equal(edges.next_latents[:5], edges.latents[5:10])  # step 2 starts where step 1 ended
    for row in range(5):  # step 4 starts one Euler step later, and the sample's end is two Euler steps after it
        prompt = int(ROWS[row])
        x = euler(adapter, conditioning, edges.next_latents[5 + row], 3, prompt)
        torch.testing.assert_close(edges.latents[10 + row], x, rtol=1e-4, atol=1e-5)
        x = edges.next_latents[10 + row]
        for k in (5, 6):
            x = euler(adapter, conditioning, x, k, prompt)
        torch.testing.assert_close(latents[row], x, rtol=1e-4, atol=1e-5)


def gaussian(kind, x, v, s, n):
    """The published steps, typed anew: (mean, std)."""
    denoised, noise = x - s * v, x + (1 - s) * v
    if kind == "cps":
        std = n * math.sin(0.6 * math.pi / 2)
        return (1 - n) * denoised + math.sqrt(n**2 - std**2) * noise, std
    g = 0.3 if kind == "dance_sde" else 0.7 * math.sqrt(s / (1 - (GRID[1] if s == 1 else s)))
    return x - (s - n) * (v + g**2 / (2 * s) * noise), g * math.sqrt(s - n)


@pytest.mark.parametrize("kind", OPTIONS)
def test_densities_are_those_of_the_stored_latents(adapter, conditioning, kind):
    _, edges = draw(adapter, conditioning, stochastic=(0, 1, 2, 3, 4, 5), kind=kind)
    noises = []
    for i in range(len(edges)):
        x, s, n = edges.latents[i], GRID[edges.step[i]], GRID[edges.step[i] + 1]
        mean, std = gaussian(kind, x, velocity(adapter, conditioning, x, s, int(ROWS[edges.sample[i]])), s, n)
        expected = Normal(mean, std).log_prob(edges.next_latents[i]).mean()
        torch.testing.assert_close(edges.old_log_prob[i], expected, rtol=1e-4, atol=1e-4)
        noises.append((edges.next_latents[i] - mean) / std)
        path = ADDRESSES[int(edges.sample[i])]._replace(path=(0,) * (int(edges.step[i]) + 1))
        torch.testing.assert_close(noises[-1], noise_at([path], (4, 8, 8))[0], rtol=1e-3, atol=1e-3)
    spread = torch.stack(noises)  # 7,680 numbers: 4 standard errors of a unit std are 0.032
    assert abs(float(spread.std()) - 1) < 0.033 and abs(float(spread.mean())) < 0.046


@pytest.mark.parametrize("chosen", [[3], [4, 0, 2]])
def test_a_subset_of_addresses_gives_the_same_samples(adapter, conditioning, chosen):
    whole, edges = draw(adapter, conditioning, stochastic=(0, 1, 2), micro_batch=2)
    index = torch.tensor(chosen)
    some, own = draw(
        adapter, conditioning, stochastic=(0, 1, 2), rows=ROWS[index], addresses=[ADDRESSES[i] for i in chosen]
    )
    torch.testing.assert_close(some, whole[index], rtol=1e-4, atol=1e-5)
    for place, sample in enumerate(chosen):
        mine, theirs = take_edges(own, own.sample == place), take_edges(edges, edges.sample == sample)
        torch.testing.assert_close(mine.next_latents, theirs.next_latents, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(mine.old_log_prob, theirs.old_log_prob, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(whole[0], whole[1], atol=1e-2)


def test_guidance_and_micro_batches(adapter, conditioning):
    guided, _ = draw(adapter, conditioning, stochastic=(1,), guidance_scale=3.0)
    split, _ = draw(adapter, conditioning, stochastic=(1,), guidance_scale=3.0, micro_batch=2)
    plain, _ = draw(adapter, conditioning, stochastic=(1,))
    torch.testing.assert_close(guided, split, rtol=1e-4, atol=1e-5)
    assert (guided - plain).abs().max() > 1e-3


def test_a_rollout_belongs_to_its_prompts(adapter, conditioning):
    batch = PromptBatch([Prompt(text) for text in PROMPTS], (3, 4, 5), 11)
    chains = plan_chains(batch, 2, seed=9)
    assert chains.prompt.tolist() == [0, 0, 1, 1, 2, 2] and chains.root.tolist() == [0, 1] * 3
    assert chains.addresses[3] == Address("train", 9, 11, 4, 1, ())
    sigmas, entered = adapter.sigmas(STEPS), []
    rollout = regenerate(
        adapter, conditioning, batch, chains, sigmas=sigmas, transition=make_transition("cps", sigmas, noise_level=0.5),
        stochastic=(2,), guidance_scale=1.0, micro_batch=4, decode_batch=5,
        clock=lambda phase: entered.append(phase) or nullcontext(),
    )  # fmt: skip
    latents, _ = denoise(
        adapter, conditioning, chains.prompt, chains.addresses, sigmas=sigmas, micro_batch=4,
        transition=make_transition("cps", sigmas, noise_level=0.5), stochastic=(2,),
    )  # fmt: skip
    assert entered == ["rollout", "decode"] and len(rollout) == 6 and rollout.batch is batch
    assert rollout.images.dtype == torch.uint8 and rollout.images.shape == (6, 3, 32, 32)
    pictures = decode(adapter, latents, 1, PROMPTS * 2)
    assert (rollout.images.int() - pictures.int()).abs().max() <= 1
