"""modelopt's fake quantisation as an engine, where it is installed: its numbers, and that they are refreshed."""

import copy

import pytest
import torch
from torch import nn

from diffrl.precision.copies import make_copy
from diffrl.precision.engines import modelopt as made_by
from diffrl.precision.report import PrecisionError
from tests.precision.made import random

mtq = pytest.importorskip("modelopt.torch.quantization", reason="nvidia-modelopt is not installed")


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 32, bias=False)).requires_grad_(False)


@pytest.mark.parametrize("precision", ["int8", "fp8"])
def test_a_copy_agrees_with_the_emulation_and_is_refreshed(precision):
    source = network()
    made, ours = (make_copy(source, precision, engine, (), "cpu") for engine in ("modelopt", "emulated"))
    for factor in (4.0, 1 / 16):  # modelopt's own scale of a weight would not shrink
        source[0].weight.mul_(factor)
        made.sync_weights(source)
        ours.sync_weights(source)
        made.check(source, lambda: made.module(random(2, 5, 48)))
        for shape in ((2, 5, 48), (7, 48), (3, 1, 4, 48)):  # left alone, a quantiser keeps its first input's axes
            torch.testing.assert_close(made.module(random(*shape)), ours.module(random(*shape)), rtol=1e-4, atol=1e-4)
    assert made.report.engine == "modelopt" and made.report.compute_dtype == "float32"


def test_quantisers_that_are_off_are_told():
    made = make_copy(network(), "fp8", "modelopt", (), "cpu")
    made.module.inner[0].inner.input_quantizer.disable()
    with pytest.raises(PrecisionError, match="0: a quantiser is "):
        made.check(network())


def test_a_packed_weight_without_a_real_product_is_told():
    """Packed for int8 there is none: modelopt dequantises and says so once."""
    fake = made_by.quantise_quietly(network(), copy.deepcopy(mtq.INT8_DEFAULT_CFG), lambda m: m(random(3, 48)))
    assert made_by.unreal(fake[0]) is None
    mtq.compress(fake)
    fake(random(3, 48))
    assert made_by.unreal(fake[0]) == "modelopt found no real product for its packed weight and dequantises it"
