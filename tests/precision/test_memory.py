"""A copy never exists in high precision as a whole: live storages are counted while it is made."""

import weakref

import pytest
import torch
from peft import LoraConfig, inject_adapter_in_model
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from diffrl.precision.copies import make_copy

WIDTH, LAYERS = 128, 24
LAYER = 4 * WIDTH * WIDTH


class Live(TorchDispatchMode):
    """Bytes of the storages that were made inside and still live; and the most there ever were."""

    def __init__(self, *before):
        super().__init__()
        self.now = self.most = 0
        self.known = {tensor.untyped_storage()._cdata for tensor in before}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, torch.Tensor) and not tensor.is_meta and not is_traceable_wrapper_subclass(tensor):
                self.note(tensor.untyped_storage())
        return out

    def note(self, storage):
        key = storage._cdata
        if key not in self.known:
            self.known.add(key)
            self.now += storage.nbytes()
            self.most = max(self.most, self.now)
            weakref.finalize(storage, self.gone, key, storage.nbytes())

    def gone(self, key, size):
        self.known.discard(key)
        self.now -= size


class Deep(nn.Module):
    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS))
        self.proj_out = nn.Linear(WIDTH, 3)


@pytest.mark.parametrize(
    ("precision", "engine", "size", "lora"),
    [
        ("int8", "auto", 1, True),
        ("int8", "torchao", 1, False),
        ("fp8", "auto", 1, False),
        ("bfloat16", "auto", 2, True),
        ("nvfp4", "emulated", 4, False),
    ],
)
@pytest.mark.long
def test_a_copy_and_a_few_layers(precision, engine, size, lora):
    if engine == "torchao":
        pytest.importorskip("torchao")
    source = Deep().requires_grad_(False)
    if lora:
        config = LoraConfig(r=3, lora_alpha=7.0, target_modules=["blocks.3", "blocks.5"])
        inject_adapter_in_model(config, source)
    with Live(*source.parameters()) as live:
        made = make_copy(source, precision, engine, ["proj_out"] if precision != "bfloat16" else (), "cpu")
    own = size * LAYER * LAYERS // 4
    assert own < live.most < own + 8 * LAYER
    assert own < live.most < (1 + size / 4) * LAYER * LAYERS, "no more than the copy beside a whole float32 network"
    assert made.report.quantised


def test_the_count_is_right():
    with Live() as live:
        first = torch.zeros(10, 100)
        second = torch.zeros(7) + first[0, 0]
        del first
        third = second.view(7, 1)
    assert (live.now, live.most) == (28, 4028 + 28)
    assert third.shape == (7, 1)
