"""E4M3 products by `_scaled_mm`, and MXFP8's rounding, against loops over the codes and against torchao."""

import math

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from diffrl.functional.formats.fp8 import fake_quantize_fp8, quantize_fp8
from diffrl.functional.formats.int8 import quantize_int8
from diffrl.functional.formats.mxfp8 import fake_quantize_mxfp8, quantize_mxfp8
from diffrl.precision.engines.native import Fp8Linear
from tests.precision.made import random

E4M3 = sorted({float(v) for v in torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float() if v == v})


def nearest(value):
    """The E4M3 number nearest to a value, by looking at all of them."""
    return min(E4M3, key=lambda code: abs(code - value))


@pytest.mark.parametrize("scaling", ["row", "tensor"])
@pytest.mark.parametrize("bias", [False, True])
def test_any_numbers_against_a_naive_oracle(scaling, bias):
    layer, x = nn.Linear(23, 5, bias=bias).requires_grad_(False), random(2, 3, 23)
    x[0, 1] = 0.0
    y, rows = Fp8Linear(layer, torch.float32, scaling)(x), x.reshape(-1, 23)
    for i in range(6):
        for k in range(5):
            sx = float((rows[i] if scaling == "row" else rows).abs().max()) / 448 or 1.0
            sw = float((layer.weight[k] if scaling == "row" else layer.weight).abs().max()) / 448
            products = (
                nearest(float(a) / sx) * nearest(float(b) / sw) for a, b in zip(rows[i], layer.weight[k], strict=True)
            )
            expected = sum(products) * sx * sw + (float(layer.bias[k]) if bias else 0.0)
            # ties between two codes may fall either way: one step of one product
            assert math.isclose(float(y.reshape(6, 5)[i, k]), expected, rel_tol=2e-3, abs_tol=2e-3)


def test_bfloat16_output_and_strided_input():
    layer = nn.Linear(16, 8).requires_grad_(False)
    x = random(2, 16, 7).bfloat16().transpose(1, 2)
    y = Fp8Linear(layer, torch.bfloat16)(x)
    assert y.dtype == torch.bfloat16 and y.shape == (2, 7, 8)
    exact = nn.functional.linear(fake_quantize_fp8(x.float()), fake_quantize_fp8(layer.weight), layer.bias)
    torch.testing.assert_close(y.float(), exact, rtol=1e-2, atol=1e-2)


def test_one_scale_for_all_makes_samples_depend_on_each_other():
    layer, x = nn.Linear(16, 8).requires_grad_(False), random(4, 16)
    loud = x.clone()
    loud[3] *= 1000
    for scaling, depends in (("row", False), ("tensor", True)):
        made = Fp8Linear(layer, torch.float32, scaling)
        assert torch.equal(made(x)[:3], made(loud)[:3]) is not depends


class Passes(TorchDispatchMode):
    """Operations that read or write a whole tensor of this many numbers, and the dtypes of those that they made."""

    def __init__(self, size):
        super().__init__()
        self.size, self.operations, self.made = size, [], set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        touched = [
            t for t in tree_leaves((args, kwargs, out)) if isinstance(t, torch.Tensor) and t.numel() == self.size
        ]
        if touched and not func.is_view and func is not torch.ops.aten.empty.memory_format:
            self.operations.append(func.overloadpacket.__name__)
            self.made |= {t.dtype for t in tree_leaves(out) if isinstance(t, torch.Tensor) and t.numel() == self.size}
        return out


@pytest.mark.parametrize("scaling", ["row", "tensor"])
def test_activations_are_passed_three_times_and_never_widened(scaling):
    """bfloat16 in, codes out: the largest, the smallest, quotient with cast in one; then the product reads codes."""
    made, x = Fp8Linear(nn.Linear(48, 16, bias=False), torch.float32, scaling), random(5, 11, 48).bfloat16()
    with torch.no_grad(), Passes(x.numel()) as passes:
        made(x)
    assert passes.operations == ["amax", "amin", "div", "_scaled_mm"]
    assert passes.made == {torch.float8_e4m3fn}


def quantised_the_long_way(x, largest, dims):
    """Every step by itself in float32, with a clamp: what the short way must equal."""
    x = x.float()
    amax = x.abs().amax(dims, keepdim=True)
    scale = amax / largest
    scale = torch.where(torch.isinf(1.0 / scale), 1.0, scale)
    return (x / scale).clamp(-largest, largest), scale


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("power", [0, -120, -126, -130, -148, 126])
def test_the_short_way_is_the_long_way_bit_for_bit(dtype, power):
    """Down to denormal scales, where amax / 448 is rounded most, and to those that are taken as 1."""
    x = (random(97, 131) * 2.0**power).to(dtype)
    x[3], x[5] = 0.0, x[5].abs().amax()
    for scaling, dims in (("row", (-1,)), ("tensor", (0, 1))):
        codes, scale = quantize_fp8(x, scaling)
        long, expected = quantised_the_long_way(x, 448.0, dims)
        assert torch.equal(codes.view(torch.uint8), long.to(torch.float8_e4m3fn).view(torch.uint8))
        assert torch.equal(scale, expected if scaling == "row" else expected.reshape(()))
    codes, scale = quantize_int8(x)
    long, expected = quantised_the_long_way(x, 127.0, (-1,))
    assert torch.equal(codes, long.round().to(torch.int8)) and torch.equal(scale, expected)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_stays_so(bad):
    x = random(3, 16)
    x[1, 5] = bad
    codes, scale = quantize_fp8(x)
    assert (codes.float() * scale).isfinite().all(dim=1).tolist() == [True, False, True]


class TestMxfp8:
    def test_exactly_torchaos(self):
        mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
        x = random(5, 7, 96) * 2.0 ** torch.randint(-20, 20, (5, 7, 1), generator=torch.Generator().manual_seed(1))
        x[0, 0] = 0.0
        theirs = mx.MXTensor.to_mx(
            x.reshape(35, 96), torch.float8_e4m3fn, block_size=32, scaling_mode=mx.ScaleCalculationMode.RCEIL
        )
        assert torch.equal(fake_quantize_mxfp8(x).reshape(35, 96), theirs.dequantize(torch.float32))

    def test_the_power_is_the_smallest_that_fits(self):
        """At and just above 448 times a power of two, where a rounded logarithm errs."""
        tops = [448.0 * 2.0**e * (1 + up * 2.0**-23) for e in (-30, 0, 4, 40) for up in (-1, 0, 1)]
        x = torch.zeros(len(tops), 32)
        x[:, 5] = torch.tensor(tops)
        _, exponents = quantize_mxfp8(x)
        for top, exponent in zip(x[:, 5].tolist(), exponents[:, 0].tolist(), strict=True):
            assert top / 2.0**exponent <= 448 < top / 2.0 ** (exponent - 1)

    def test_ragged_blocks_and_dtypes(self):
        x = random(3, 37)
        padded = torch.cat([x, torch.zeros(3, 27)], dim=1)
        assert torch.equal(fake_quantize_mxfp8(x), fake_quantize_mxfp8(padded)[:, :37])
        assert fake_quantize_mxfp8(x.bfloat16()).dtype == torch.bfloat16
        assert torch.equal(fake_quantize_mxfp8(x[:1]), fake_quantize_mxfp8(x)[:1])

    def test_the_smallest_numbers_become_zeros(self):
        assert torch.equal(fake_quantize_mxfp8(torch.full((1, 32), 1e-42)), torch.zeros(1, 32))

    @pytest.mark.parametrize("x", [torch.tensor(1.0), torch.zeros(3, 0)])
    def test_nothing_to_quantise(self, x):
        with pytest.raises(ValueError, match="at least one element"):
            fake_quantize_mxfp8(x)
