"""What asks for a GPU, on one that the CPU plays: conversion, weights and checks, up to products that a CPU lacks."""

import sys
from types import ModuleType, SimpleNamespace

import accelerate.state  # noqa: F401 - which looks for transformer-engine when it is imported
import peft  # noqa: F401
import pytest
import torch
from torch import nn

from diffrl.functional.formats.nvfp4 import fake_quantize_nvfp4
from diffrl.precision.copies import make_copy
from diffrl.precision.formats import PRECISIONS
from diffrl.precision.report import PrecisionError
from tests.played_cuda import played_cuda

GATED = [
    (precision, engine)
    for precision, known in PRECISIONS.items()
    for engine, one in known.runners.items()
    if one.need is not None and not one.need.cpu
]
NO_PRODUCT = ("mxfp8", "nvfp4")
"""Precisions with scales for blocks, which torch multiplies on no CPU."""


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 128), nn.Linear(128, 64)).eval()


class FakeTe(nn.Linear):
    """transformer-engine's layer: it quantises its weight when it is told that it is new."""

    def __init__(self, *sizes, bias, params_dtype, device):
        super().__init__(*sizes, bias=bias, dtype=params_dtype)

    def forward(self, x, is_first_microbatch):
        if is_first_microbatch:
            self.rounded = fake_quantize_nvfp4(self.weight.float())
        return (fake_quantize_nvfp4(x.float()) @ self.rounded.T + self.bias.float()).bfloat16()


@pytest.fixture
def transformer_engine(monkeypatch):
    """A module with what of transformer-engine 2.9 is called."""
    names = ("transformer_engine", "transformer_engine.common", "transformer_engine.pytorch")
    for name in (*names, "transformer_engine.common.recipe"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    made = sys.modules["transformer_engine.pytorch"]
    made.Linear, made.autocast = FakeTe, lambda enabled, recipe: torch.no_grad()
    sys.modules["transformer_engine"].pytorch = made
    recipe = lambda **_: SimpleNamespace(nvfp4=lambda: True)  # noqa: E731
    sys.modules["transformer_engine.common.recipe"].NVFP4BlockScaling = recipe
    monkeypatch.setattr("diffrl.precision.choice.installed", lambda _: (2, 9))
    from diffrl.precision.engines import te

    te.recipe.cache_clear()
    yield made
    te.recipe.cache_clear()


@pytest.mark.parametrize(("precision", "engine"), [kind for kind in GATED if kind[1] != "te"])
def test_up_to_the_product(precision, engine):
    pytest.importorskip(engine)
    source = network()
    with played_cuda(capability=(10, 0)):
        if precision in NO_PRODUCT:
            with pytest.raises(PrecisionError, match=r"cannot be multiplied: (RuntimeError|ValueError|NotImpl)"):
                make_copy(source, precision, engine, (), "cuda")
            return
        copy = make_copy(source, precision, engine, (), "cuda")
        copy.sync_weights(source)
        assert copy.module(torch.randn(32, 64)).shape == (32, 64)


def test_transformer_engine(transformer_engine):
    with played_cuda(capability=(10, 0)):
        copy = make_copy(network(), "nvfp4", "te", (), "cuda")
        source = network()
        with torch.no_grad():
            source[0].weight.mul_(2)
        copy.sync_weights(source)
        x = torch.randn(32, 64)
        error = (copy.module(x).float() - source(x)).norm() / source(x).norm()
        assert 0.01 < error < 0.3


def test_a_version_without_a_function_is_told_as_that(transformer_engine):
    del transformer_engine.autocast
    with (
        played_cuda(capability=(10, 0)),
        pytest.raises(PrecisionError, match=r"cannot be multiplied: AttributeError: .*no attribute 'autocast'"),
    ):
        make_copy(network(), "nvfp4", "te", (), "cuda")
