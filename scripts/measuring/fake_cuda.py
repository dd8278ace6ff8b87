"""A CUDA device that is not there: tensors with shapes, dtypes and devices, and no numbers.

PyTorch's FakeTensorMode refuses operations between devices as a GPU would, needs no memory, and cannot read a value.
Here only what lies on the device is fake: what diffrl counts on the host (nodes, addresses, noise) is computed. Nothing
of this has run on a GPU.
"""

from __future__ import annotations

import inspect
import itertools
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils._pytree import tree_leaves

from diffrl.bundled import recipes
from diffrl.config import load_config
from diffrl.config.schema import EvalSettings
from diffrl.cost.fake_mode import ALL, INDEXING, NOT, READ, FakeMode, negate, rows_of
from diffrl.doctor.models import Case, full_adapter, random_encodings
from diffrl.models.published import published_pipeline
from diffrl.records import Prompt, PromptBatch
from diffrl.rollout.denoise import Sampler
from diffrl.rollout.explore import explore
from diffrl.rollout.regenerate import regenerate
from diffrl.rollout.transition import make_transition
from diffrl.rollout.tree import plan_forest, root_addresses
from diffrl.training.evaluate import draw

CUDA = torch.device("cuda", 0)
COPY = torch.ops.aten._to_copy.default
VALUES = {torch.int64: 1, torch.int32: 1}


WAITS = ("read", "to host", "to device", "index from host")


class FakeCuda(FakeMode):
    """Within it, tensors that are asked for on cuda are fake, and whoever makes the host wait for them is counted.

    What is read of the device is as in a healthy run: `all` holds, `any` does not, numbers are .5 or 1.

    Attributes:
        waits: what made the host wait -> how often: "read" (`item`, `tolist`, `if tensor`), "to host", "to device" (a
            copy from pageable memory), "index from host" (a device tensor indexed by one of the host).
    """

    def __init__(self) -> None:
        super().__init__()
        self.waits: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        fake = [tensor for tensor in tensors if isinstance(tensor, FakeTensor)]
        on_cuda = any(tensor.device.type == "cuda" for tensor in fake)
        device = kwargs.get("device")
        to_cuda = device is not None and torch.device(device).type == "cuda"
        if func is READ and fake:
            self.waits["read"] += 1
            return hasattr(fake[0], "holds") if fake[0].dtype == torch.bool else VALUES.get(fake[0].dtype, 0.5)
        if func is COPY and device is not None and to_cuda != on_cuda:
            self.waits["to device" if to_cuda else "to host"] += 1
        if func in INDEXING and on_cuda:
            if any(tensor.device.type == "cpu" and tensor.ndim for tensor in tensors):
                self.waits["index from host"] += 1
            elif any(index is not None and index.dtype == torch.bool for index in args[1]):
                self.waits["read"] += 1  # how many rows a mask names
            args = (args[0], [rows_of(index) for index in args[1]], *args[2:])
        if fake or to_cuda:
            result = func(*args, **kwargs)
            if func in ALL:
                result.holds = True
            return negate(result, args[0]) if func is NOT else result
        with unset_fake_temporarily():
            return func(*args, **kwargs)


def case_of(family: str) -> Case:
    """Return the model of a family's recipe `diffrl`, at its sizes."""
    config = load_config(recipes()[f"{family}/diffrl"])
    size = {name: value for name in ("height", "width", "frames") if (value := getattr(config.model, name)) is not None}
    return Case(family, config.model.path, size, guidance_scale=config.rollout.guidance_scale)


def shallow(case: Case) -> dict[str, int]:
    """Return settings of a network with one block of each kind: all operations and shapes of the whole, in seconds.

    SD3 has two: its last block is unlike the others.
    """
    network = published_pipeline(case.path).components["transformer"].made
    counts = [name for name in inspect.signature(network).parameters if re.fullmatch(r"(num|n)_(\w+_)?layers", name)]
    return dict.fromkeys(counts, 2 if case.family == "sd3" else 1)


@contextmanager
def shallow_model(case: Case) -> Iterator[tuple]:
    """Yield a published architecture of few blocks in bfloat16 on the device, and encodings of two prompts."""
    with patch.object(torch.nn.Module, "_apply", lambda module, *_, **__: module):  # it is there, in its dtype
        adapter = full_adapter(case, CUDA, **shallow(case))
        one = random_encodings(adapter, torch.device("cpu"))
        yield adapter, {name: value.repeat(2, *[1] * (value.ndim - 1)).to(CUDA) for name, value in one.items()}


def record_trees(cuda: FakeCuda, case: Case, **options) -> tuple:
    """Return a recorded tree of each of two prompts, four steps of which the first and the third split.

    Returns:
        The rollout, and what each of its steps but the first made the host wait for, and at last the end.
    """
    forest, waits = plan_forest(2, 1, {0: 2, 2: 2}), []
    batch = PromptBatch([Prompt("a"), Prompt("b")], range(2), 0)
    with shallow_model(case) as (adapter, conditioning):
        sigmas = adapter.sigmas(4)
        transition = make_transition("flow_sde", sigmas, noise_level=0.7)
        rollout = regenerate(
            adapter,
            conditioning,
            batch,
            forest,
            root_addresses(forest, batch, 0),
            Sampler(sigmas, None, transition, 4.0, "ab2", case.guidance_scale, micro_batch=3),
            record=[0, 2],
            decode_batch=2,
            observe=[lambda level: waits.append(Counter(cuda.waits))],
            **options,
        )
    return rollout, [dict(after - before) for before, after in itertools.pairwise(waits)]


def explored_and_evaluated(case: Case) -> tuple[torch.Tensor, torch.Tensor]:
    """Return pictures of a pool of two prompts' candidates and of a held-out evaluation, within a `FakeCuda`."""
    forest, batch = plan_forest(2, 3, {}), PromptBatch([Prompt("a"), Prompt("b")], range(2), 0)
    with shallow_model(case) as (adapter, conditioning):
        sampler = Sampler(adapter.sigmas(3), guidance_scale=case.guidance_scale, micro_batch=4)
        roots = root_addresses(forest, batch, 0)
        pool = explore(adapter, conditioning, batch, forest, roots, sampler, decode_batch=2)
        scale, rewards = case.guidance_scale, [{"name": "contrast"}]
        settings = EvalSettings(rewards=rewards, samples=3, steps=2, guidance_scale=scale, batch=2)
        _, held_out = draw(adapter, conditioning, batch.prompts, [(0, 0), (1, 0), (0, 1)], settings, 2, "eval")
    return pool, held_out


def waits_of_steps(family: str) -> Mapping[str, Mapping[str, int]]:
    """Count what recorded steps, deterministic and stochastic, make the host wait for, as `FakeCuda` does."""
    with FakeCuda() as cuda:
        _, (_, stochastic, deterministic, _) = record_trees(cuda, case_of(family))
    steps = {"deterministic step": deterministic, "stochastic step": stochastic}
    return {name: {what: waits.get(what, 0) for what in WAITS} for name, waits in steps.items()}
