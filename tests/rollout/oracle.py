"""A small network whose rows do not depend on the batch, and a denoiser that walks one path at a time in float64."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.distributions import Normal

from diffrl.records import Edges, Forest, Prompt, PromptBatch
from diffrl.rollout.address import Address
from diffrl.rollout.denoise import Sampler, denoise
from diffrl.rollout.noise import noise_at
from diffrl.rollout.observers import EdgeRecorder, PredictionRecorder
from diffrl.rollout.transition import make_transition
from diffrl.rollout.tree import plan_forest, root_addresses

SEED, ITERATION, GROUPS = 9, 4, (8, 3, 21)
OPTIONS = {"flow_sde": {"noise_level": 0.7}, "dance_sde": {"eta": 0.3}, "cps": {"noise_level": 0.6}}
BATCH = PromptBatch(
    [Prompt(text) for text in ("a red circle", "two blue squares", "a green triangle")], GROUPS, ITERATION
)
Key = tuple[int, int, tuple[int, ...]]
"""A node: prompt, root, and the child taken at each stochastic step so far."""
Net = Callable[[Tensor, float, int], Tensor]
"""Velocity of one latent at a noise level, for a prompt."""


class FakeAdapter:
    """Elementwise arithmetic that rounds a row alike in every batch; pictures that show every bit of the latents."""

    shape = (3, 2, 5)

    def __init__(self):
        self.rows: list[int] = []

    def encode_prompts(self, prompts):
        index = torch.arange(len(prompts), dtype=torch.float32)
        return {"gain": 1.3 - 0.7 * index, "bias": 0.2 + 0.5 * index}

    def init_latents(self, draw):
        return draw(self.shape)

    def sigmas(self, steps):
        even = torch.linspace(1, 0, steps + 1)
        return 3 * even / (1 + 2 * even)

    def velocity(self, latents, sigma, conditioning, guidance_scale):
        self.rows.append(len(latents))
        s, gain, bias = (value.reshape(-1, 1, 1, 1) for value in (sigma, conditioning["gain"], conditioning["bias"]))
        place = torch.arange(30, dtype=latents.dtype).reshape(self.shape) / 31
        bend = latents / (1 + latents * latents)
        return place * latents + guidance_scale * gain * bend - bias * s

    def decode(self, latents):
        return latents.contiguous().view(torch.uint8)


class Drawn(NamedTuple):
    """What the library's own denoising gives, with everything observed."""

    latents: Tensor
    edges: Edges
    predicted: Tensor | None


@dataclass(frozen=True)
class Case:
    """What is drawn, and how."""

    branching: Mapping[int, int] = field(default_factory=dict)
    steps: int = 7
    levels: tuple[int, ...] | None = None
    roots: int = 2
    kind: str = "flow_sde"
    correlation: float = 4.0
    solver: str = "ode"
    guidance: float = 1.0
    latents_dtype: torch.dtype = torch.float32

    def __str__(self):
        grid = "full" if self.levels is None else "coarse"
        tree = "-".join(f"{step}x{children}" for step, children in self.branching.items())
        return f"{tree or 'none'} {self.kind} {self.solver} {grid} c={self.correlation:g} roots={self.roots}"

    @property
    def forest(self) -> Forest:
        return plan_forest(len(GROUPS), self.roots, self.branching)

    def sampler(self, adapter, micro_batch: int = 128) -> Sampler:
        sigmas = adapter.sigmas(self.steps)
        transition = make_transition(self.kind, sigmas, **OPTIONS[self.kind])
        more = self.solver, self.guidance, micro_batch, self.latents_dtype
        return Sampler(sigmas, self.levels, transition, self.correlation, *more)

    def draw(self, adapter, forest=None, record=None, predict=False, micro_batch=128):
        """The library's own denoising."""
        forest = self.forest if forest is None else forest
        edges, predicted = EdgeRecorder(forest, record, dtype=self.latents_dtype), PredictionRecorder(forest)
        latents = denoise(
            adapter, adapter.encode_prompts([prompt.text for prompt in BATCH.prompts]), forest,
            root_addresses(forest, BATCH, SEED), self.sampler(adapter, micro_batch),
            observe=[edges, *([predicted] if predict else [])],
        )  # fmt: skip
        return Drawn(latents, edges.edges(), predicted.latents if predict else None)

    def sample_keys(self) -> list[Key]:
        """All samples, in the order in which they should lie."""
        children = [range(self.branching[step]) for step in sorted(self.branching)]
        return [(p, r, path) for p in range(len(GROUPS)) for r in range(self.roots) for path in product(*children)]


def node_keys(forest: Forest) -> list[Key]:
    """Each node of a forest, found by climbing to its root."""
    keys = []
    for node in range(len(forest.parent)):
        path: list[int] = []
        at = node
        while forest.parent[at] >= 0:
            path.insert(0, int(forest.child[at]))
            at = int(forest.parent[at])
        keys.append((int(forest.prompt[node]), int(forest.root[node]), tuple(path)))
    return keys


@dataclass
class Edge:
    step: int
    sigma: float
    sigma_next: float
    latents: Tensor
    noise: Tensor
    next_latents: Tensor
    log_prob: Tensor


@dataclass
class Walked:
    """Everything that some paths pass, by node; evaluations are pairs (node, level), each once."""

    ends: dict[Key, Tensor] = field(default_factory=dict)
    latents: dict[Key, Tensor] = field(default_factory=dict)
    predicted: dict[Key, Tensor] = field(default_factory=dict)
    edges: dict[Key, Edge] = field(default_factory=dict)
    evaluations: set[tuple[Key, int]] = field(default_factory=set)


def net_of(adapter, guidance: float = 1.0, dtype=torch.float64) -> Net:
    conditioning = adapter.encode_prompts([prompt.text for prompt in BATCH.prompts])

    def net(x, sigma, prompt):
        row = {name: tensor[prompt : prompt + 1].to(dtype) for name, tensor in conditioning.items()}
        with torch.no_grad():
            return adapter.velocity(x[None].to(dtype), torch.tensor([sigma], dtype=dtype), row, guidance)[0].double()

    return net


def draw_noise(key: Key, path: tuple[int, ...], shape) -> Tensor:
    address = Address("train", SEED, ITERATION, GROUPS[key[0]], key[1], path)
    return noise_at([address], shape)[0].double()


def gaussian(kind: str, x: Tensor, v: Tensor, s: float, n: float, first: float) -> tuple[Tensor, float]:
    """The table of METHODS.md, section 1."""
    denoised, noise = x - s * v, x + (1 - s) * v
    if kind == "cps":
        q = n * math.sin(0.6 * math.pi / 2)
        return (1 - n) * denoised + math.sqrt(n**2 - q**2) * noise, q
    g = 0.3 if kind == "dance_sde" else 0.7 * math.sqrt(s / (1 - (first if s == 1 else s)))
    return x - (s - n) * (v + g**2 / (2 * s) * noise), g * math.sqrt(s - n)


def deterministic(solver: str, x: Tensor, v: Tensor, s: float, n: float, before: tuple[Tensor, float] | None) -> Tensor:
    """Integral from s to n of the velocity: constant, or (ab2) the line through it and the one before."""
    if solver == "ode" or before is None:
        return x + (n - s) * v
    slope = (v - before[0]) / (s - before[1])
    return x + (n - s) * v + slope * (n - s) ** 2 / 2


def walk(case: Case, net: Net, shape, sigmas: Tensor, keys: list[Key]) -> Walked:
    """Paths to the given samples, each from its noise and by itself."""
    found, levels = Walked(), sigmas.double().tolist()
    grid = case.levels or tuple(range(case.steps + 1))
    for prompt, root, choices in keys:
        key: Key = (prompt, root, ())
        path: tuple[int, ...] = ()
        x = draw_noise(key, path, shape)
        before = None
        for i, after in zip(grid[:-1], grid[1:], strict=True):
            s, n = levels[i], levels[after]
            v = net(x, s, prompt)
            found.evaluations.add((key, i))
            if before is None:
                found.latents[key], found.predicted[key] = x, x - s * v
            if i not in case.branching:
                x, before = deterministic(case.solver, x, v, s, n, before), (v, s)
                path += (0,) * (after - i)
                continue
            k = choices[len(key[2])]
            noise = draw_noise(key, (*path, k), shape)
            if case.branching[i] > 1 and case.correlation < math.inf:
                c = case.correlation
                noise = (draw_noise(key, (*path, -1), shape) + c * noise) / math.sqrt(1 + c**2)
            mean, std = gaussian(case.kind, x, v, s, n, levels[1])
            moved = mean + std * noise
            density = Normal(mean, std).log_prob(moved).mean()
            key, path, before = (prompt, root, (*key[2], k)), (*path, k), None
            found.edges[key] = Edge(i, s, n, x, noise, moved, density)
            x = moved
        found.ends[key] = found.predicted[key] = x
    return found
