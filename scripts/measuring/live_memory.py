"""What a network call holds at most, forward and backward, without a GPU and without the memory: on fake tensors.

PyTorch's FakeTensorMode computes shapes alone; a dispatch mode adds up the storages that are alive. Tensors are on a
fake CPU, because the backward pass of a fake CUDA device asks for a driver; they follow CUDA's rules of autocast, and
an RMS norm is one kernel as it is there. What kernels take as workspaces, and what an allocator wastes, is not seen.
"""

from __future__ import annotations

import weakref
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from diffrl.config.schema import Config
from diffrl.doctor.models import Case, full_adapter, random_encodings
from diffrl.models.lora import add_lora
from diffrl.models.published import published_pipeline
from measuring.fake_mode import INDEXING, NOT, READ, FakeMode, negate, rows_of
from tests.cuda_rules import cuda_rules

CPU = torch.device("cpu")
KINDS = {
    "flux": ("num_layers", "num_single_layers"),
    "flux2_klein": ("num_layers", "num_single_layers"),
    "z_image": ("n_layers", "n_refiner_layers"),
    "sd3": ("plain", "dual"),
}
"""How each kind of a network's blocks is counted in its config, where that is not `num_layers` alone; of SD3.5 Medium
some have a second attention, and `call_bytes` knows how its config says so."""


class FusedNorm(torch.autograd.Function):
    """CUDA's RMS norm without its numbers: it keeps its input, its weight and one float32 number a row."""

    @staticmethod
    def forward(ctx, x, weight):
        """As large as x."""
        ctx.save_for_backward(x, weight, x.new_empty(x.shape[:-1], dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx, gradient):
        """Of x, and of the weight where it is trained."""
        x, weight, _ = ctx.saved_tensors
        return torch.empty_like(x), torch.empty_like(weight) if ctx.needs_input_grad[1] else None


def rms_norm(x, shape, weight=None, eps=None):
    """Stand in for PyTorch's function."""
    if torch.is_autocast_enabled("cpu"):
        x, weight = x.float(), None if weight is None else weight.float()
    return FusedNorm.apply(x, weight)


class LiveMemory(FakeMode):
    """Within it, tensors are fake but for those that were there before, and bytes of living storages are added up.

    Attributes:
        live: bytes that are alive, of tensors made within.
        peak: the most that were.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[weakref.ref] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if tensors and not any(isinstance(tensor, FakeTensor) for tensor in tensors):  # masks, which networks read
            with unset_fake_temporarily():
                return func(*args, **kwargs)
        if func is READ and tensors:
            return True  # whether an image is all zeros, as from text alone
        if func in INDEXING:
            args = (args[0], [rows_of(index) for index in args[1]], *args[2:])
        found = func(*args, **kwargs)
        if func is NOT:
            negate(found, args[0])
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf.untyped_storage())
        return found

    def _see(self, storage) -> None:
        size = storage.nbytes()
        reference = weakref.ref(storage, lambda dead: self._forget(dead, size))
        if reference not in self._known:
            self._known.add(reference)
            self.live += size
            self.peak = max(self.peak, self.live)

    def _forget(self, reference, size: int) -> None:
        self._known.discard(reference)
        self.live -= size


def blocks_of(config: Config) -> dict[str, int]:
    """Every kind of block that the configured network has, and how many of it."""
    network = published_pipeline(config.model.path).components["transformer"].config
    dual = len(network.get("dual_attention_layers", ()))
    known = {**network, "dual": dual, "plain": network.get("num_layers", 0) - dual}
    counts = {kind: known[kind] for kind in KINDS.get(config.model.facts.name, ("num_layers",))}
    return {kind: count for kind, count in counts.items() if count}


def whole_bytes(config: Config, samples: int) -> int:
    """Most bytes that a trained call of the whole network holds.

    Those of two blocks of each kind, and for each further one what a third adds. The first block is no measure, since
    no gradient goes on to what comes before it.
    """
    counts, scale = blocks_of(config), config.rollout.guidance_scale
    two = dict.fromkeys(counts, 2)
    base = call_bytes(config, two, samples, scale, trained=True)
    more = {kind: call_bytes(config, two | {kind: 3}, samples, scale, trained=True) - base for kind in counts}
    return base + sum((counts[kind] - 2) * size for kind, size in more.items())


def call_bytes(config: Config, blocks: dict[str, int], samples: int, guidance_scale: float, trained: bool) -> int:
    """Most bytes that a network call of some blocks holds, its weights and its inputs left out.

    Args:
        config: whose model, LoRA and checkpointing are taken.
        blocks: of each kind, as in `blocks_of`.
        samples: in the call.
        guidance_scale: of the call.
        trained: forward with gradient and backward; else forward alone.
    """
    m = config.model
    size = {name: value for name, value in m.options.items() if value is not None}
    case = Case(m.facts.name, m.path, size, guidance_scale=guidance_scale)
    if m.facts.name == "sd3":
        dual = blocks.get("dual", 0)
        blocks = {"num_layers": blocks.get("plain", 0) + dual, "dual_attention_layers": range(dual)}
    fused = patch.object(torch.nn.functional, "rms_norm", rms_norm)
    with (
        LiveMemory() as memory,
        fused,
        cuda_rules(),
        patch.object(torch.nn.Module, "_apply", lambda module, *_, **__: module),
    ):
        adapter = full_adapter(case, CPU, **blocks)
        if m.lora is not None:
            add_lora(adapter.transformer, m.lora.rank, m.lora.alpha, m.lora_targets, 0)
        else:
            adapter.train_whole()
            for parameter in adapter.transformer.requires_grad_(True).parameters():
                parameter.data = parameter.data.float()
        if trained and config.train.gradient_checkpointing:
            adapter.transformer.enable_gradient_checkpointing()
        for parameter in adapter.transformer.parameters():
            if parameter.requires_grad:
                parameter.grad = torch.zeros_like(parameter)  # as it is throughout an update of several micro-batches
        rows = _rows(random_encodings(adapter, m.facts.name, CPU), samples)
        latents, sigma = adapter.init_latents(lambda shape: torch.empty(samples, *shape)), torch.ones(samples)
        before = memory.live
        memory.peak = before
        with torch.set_grad_enabled(trained):
            velocity = adapter.velocity(latents, sigma, rows, guidance_scale)
            if trained:
                velocity.square().mean().backward()
        return memory.peak - before


def _rows(encodings: dict[str, torch.Tensor], samples: int) -> dict[str, torch.Tensor]:
    """Encodings of as many prompts; masks are no fakes, since networks read them: every place is taken."""
    with unset_fake_temporarily():
        masks = {name: torch.ones(samples, *value.shape[1:], dtype=value.dtype) for name, value in encodings.items()}
    return {
        name: masks[name] if name.endswith("mask") else value.expand(samples, *value.shape[1:])
        for name, value in encodings.items()
    }
