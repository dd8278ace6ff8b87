"""Flow-GRPO in one file: the method of configs/tiny-sd3/flow_grpo.yaml, without anything around it.

    python docs/minimal_grpo.py [iterations]

Read it top-down. A rollout draws several images of each prompt by a stochastic sampler and keeps every transition.
Images are scored, and a sample's advantage is its score against the others of its prompt. The update makes the
transitions of better samples likelier, within a clip. Flow-GRPO, arXiv 2505.05470; docs/methods/flow_grpo.md.
Only the reward and the prompts are diffrl's; `tests/test_minimal_grpo.py` holds the mathematics to the library.
"""

import argparse
from pathlib import Path

import torch
from diffusers import StableDiffusion3Pipeline

from diffrl.data.worlds import embedded_prompts
from reward_models import RewardBatch, load_reward

STEPS, NOISE_LEVEL = 5, 0.7
PROMPTS, SAMPLES = 8, 16  # of an iteration, and of a prompt
CLIP, LEARNING_RATE, UPDATES = 1e-3, 2e-4, 2


def noise_levels(steps=STEPS):
    """Noise levels from 1 (noise) to 0 (image), evenly; real models shift them towards noise."""
    return torch.linspace(1, 0, steps + 1)


def step(x, v, s, n, top):
    """Return mean and standard deviation of the latents at level n, given those at s and the predicted velocity.

    The stochastic differential equation has the marginals of the deterministic one, whatever the noise (equation 9).
    `top` stands for s where s is 1 and the noise would be infinite.
    """
    g = NOISE_LEVEL * (s / (1 - (top if s == 1 else s))) ** 0.5
    noise = x + (1 - s) * v  # what v says of the noise in x
    return x - (s - n) * (v + g**2 / (2 * s) * noise), g * (s - n) ** 0.5


def log_prob(x, mean, std):
    """Log-density of the next latents, averaged over their dimensions: clips of the papers assume the average."""
    return torch.distributions.Normal(mean, std).log_prob(x).mean(dim=(1, 2, 3))


def velocity(pipeline, x, s, words):
    """The network's prediction at level s; it counts time in thousandths. No classifier-free guidance here."""
    time = torch.full((len(x),), 1000.0 * float(s))
    return pipeline.transformer(x, words[0], words[1], time, return_dict=False)[0]


def encode(pipeline, prompts):
    """Embeddings of prompts, each as often as it is drawn."""
    with torch.no_grad():
        embeddings, _, pooled, _ = pipeline.encode_prompt(prompts, prompts, prompts, do_classifier_free_guidance=False)
    return [one.repeat_interleave(SAMPLES, 0) for one in (embeddings, pooled)]


@torch.no_grad()
def rollout(pipeline, words, generator):
    """Return images, uint8 (B, 3, H, W), and transitions: level, next level, x, next x, log-density (B,)."""
    levels, size = noise_levels(), pipeline.transformer.config.sample_size
    x = torch.randn(len(words[0]), pipeline.transformer.config.in_channels, size, size, generator=generator)
    transitions = []
    for s, n in zip(levels[:-1], levels[1:], strict=True):
        v = velocity(pipeline, x, s, words)
        if n == 0:  # noise here would go straight into the image
            x = x - s * v
            break
        mean, std = step(x, v, s, n, levels[1])
        new = mean + std * torch.randn(x.shape, generator=generator)
        transitions.append((s, n, x, new, log_prob(new, mean, std)))
        x = new
    latents = x / pipeline.vae.config.scaling_factor + pipeline.vae.config.shift_factor
    images = pipeline.vae.decode(latents, return_dict=False)[0]
    return ((images / 2 + 0.5).clamp(0, 1) * 255).round().byte(), transitions


def advantages(rewards):
    """Each sample against its prompt's mean, in the prompt's standard deviations; no spread teaches nothing."""
    groups = rewards.view(-1, SAMPLES)
    spread = groups.std(dim=1, unbiased=False, keepdim=True)
    return ((groups - groups.mean(dim=1, keepdim=True)) / (spread + 1e-4)).flatten()


def loss_of(pipeline, words, transition, advantage):
    """The clipped surrogate of one transition (B,) of all samples. Before the first update the ratio is 1."""
    s, n, x, new, old = transition
    mean, std = step(x, velocity(pipeline, x, s, words), s, n, noise_levels()[1])
    ratio = (log_prob(new, mean, std) - old).exp()
    return torch.max(-advantage * ratio, -advantage * ratio.clamp(1 - CLIP, 1 + CLIP)).mean(), ratio


def main(iterations=40, pipeline="assets/tiny-sd3", seed=0):
    """Align the embedded pipeline, and print the mean score of each iteration's images."""
    torch.manual_seed(seed)
    generator, rewarding = torch.Generator().manual_seed(seed), load_reward("shapes")
    pipeline = StableDiffusion3Pipeline.from_pretrained(Path(pipeline), torch_dtype=torch.float32)
    pipeline.transformer.train()
    optimizer = torch.optim.AdamW(pipeline.transformer.parameters(), LEARNING_RATE)
    rows, means = embedded_prompts("shapes", "train"), []
    for iteration in range(iterations):
        chosen = [rows[i] for i in torch.randint(len(rows), (PROMPTS,), generator=generator)]
        words = encode(pipeline, [row.text for row in chosen])
        images, transitions = rollout(pipeline, words, generator)
        metadata = [row.metadata for row in chosen for _ in range(SAMPLES)]
        prompts = [row.text for row in chosen for _ in range(SAMPLES)]
        rewards = rewarding(RewardBatch(images, prompts, metadata)).raw.float()
        advantage = advantages(rewards)
        for part in range(UPDATES):  # every transition once; of old weights, so the second update is off policy
            optimizer.zero_grad()
            used = transitions[part::UPDATES]
            for transition in used:
                loss, _ = loss_of(pipeline, words, transition, advantage)
                (loss / len(used)).backward()
            torch.nn.utils.clip_grad_norm_(pipeline.transformer.parameters(), 1.0)
            optimizer.step()
        means.append(rewards.mean().item())
        print(f"iteration {iteration}: mean score {means[-1]:.3f}")
    return means


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("iterations", type=int, nargs="?", default=40)
    main(parser.parse_args().iterations)
