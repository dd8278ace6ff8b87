"""NVFP4 against torchao bit for bit, against a per-element oracle, and by its properties."""

import math

import pytest
import torch
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, nvfp4_quantize, per_tensor_amax_to_scale

from diffrl.functional.formats.nvfp4 import fake_quantize_nvfp4, split_nvfp4

VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0]
TIES = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0])


def random(shape, scale=1.0, seed=0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def same_bits(one, other):
    return torch.equal(one.view(torch.int32), other.view(torch.int32))


def zero_rows(shape):
    x = random(shape, seed=1)
    x[1::3] = 0.0
    x[..., :16] *= 1e-7  # a block far below the smallest scale
    return x


def ties(shape):
    """Elements whose scaled values are exact ties in all blocks: each block's largest is 6, the tensor's 6 * 448."""
    count = math.prod(shape)
    signs = 1.0 - 2.0 * (torch.arange(count) % 3 == 0)
    x = (TIES.repeat(count // 8 + 1)[:count] * signs).reshape(shape)
    x[0, :16] *= 448.0
    return x


def half_precision(shape):
    return random(shape, seed=2).bfloat16().float()


def outliers(shape):
    x = random(shape, seed=3)
    return torch.where(x.abs() > 2.5, x * 1e3, x)


CASES = {
    "normal": random,
    "tiny": lambda shape: random(shape, 1e-33),
    "small weights": lambda shape: random(shape, 0.002),
    "huge": lambda shape: random(shape, 1e36),
    "zero rows": zero_rows,
    "ties": ties,
    "bfloat16": half_precision,
    "outliers": outliers,
}


@pytest.mark.parametrize("shape", [(3, 16), (7, 48), (257, 112), (5, 1024)], ids=str)
@pytest.mark.parametrize("case", CASES)
def test_it_is_torchaos_bit_for_bit(case, shape):
    x = CASES[case](shape)
    scale = per_tensor_amax_to_scale(x.abs().max())
    block_scales, packed = nvfp4_quantize(x, per_tensor_scale=scale)
    values, outer = split_nvfp4(x)
    codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(-2).long()
    grid = torch.tensor([*VALUES, *(-value for value in VALUES)])[codes].reshape(*shape[:-1], -1, 16)
    assert same_bits(outer, scale)
    assert same_bits(values, (grid * block_scales.float().reshape(*shape[:-1], -1, 1)).flatten(-2))
    theirs = NVFP4Tensor.to_nvfp4(x, per_tensor_scale=scale).dequantize(torch.float32)
    assert same_bits(fake_quantize_nvfp4(x), theirs)


def oracle(x, per_row):
    """Element by element in Python; float32 arithmetic one operation at a time, ties by the code's last bit."""

    def e2m1(y):
        y = min(abs(y), 6.0)
        return min(VALUES, key=lambda value: (abs(value - y), VALUES.index(value) % 2))

    out = torch.empty_like(x)
    for i in range(x.shape[0]):
        amax = (x[i] if per_row else x).abs().max()
        s2 = amax / 2688 if amax > 0 else torch.tensor(1.0)
        for start in range(0, x.shape[1], 16):
            block = x[i, start : start + 16]
            s1 = ((block.abs().max() / 6) / s2).clamp(2**-6, 448).to(torch.float8_e4m3fn).float()
            for j, element in enumerate(block):
                y = float((element * ((1 / s2) / s1)).clamp(-6, 6))
                out[i, start + j] = math.copysign(e2m1(y), y) * (s2 * s1)
    return out


@pytest.mark.parametrize("per_row", [False, True], ids=["tensor", "row"])
@pytest.mark.parametrize("columns", [1, 13, 31, 53])
@pytest.mark.parametrize("case", ["normal", "ties", "small weights", "zero rows"])
def test_any_length_agrees_with_an_oracle_that_knows_single_elements(case, columns, per_row):
    x = CASES[case]((5, columns))
    assert same_bits(fake_quantize_nvfp4(x, per_row), oracle(x, per_row))


@pytest.mark.parametrize("per_row", [False, True], ids=["tensor", "row"])
@pytest.mark.parametrize("shape", [(17,), (3, 5, 29), (2, 3, 5, 64)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_any_shape_and_dtype_agrees_with_the_oracle(shape, per_row, dtype):
    x = random(shape, 3.0).to(dtype)
    x[..., :2] = torch.tensor([-0.0, 0.0])
    before = x.clone()
    expected = oracle(x.float().reshape(-1, shape[-1]), per_row).reshape(shape)
    result = fake_quantize_nvfp4(x, per_row)
    assert result.dtype == dtype and result.shape == x.shape
    assert same_bits(expected.to(dtype).float(), result.float())
    assert torch.equal(x, before)


@pytest.mark.parametrize("per_row", [False, True], ids=["tensor", "row"])
def test_what_can_be_represented_comes_back_exactly(per_row):
    """Codes times powers of two, one block at the largest scale so that the outer scale is a power of two as well."""
    generator = torch.Generator().manual_seed(4)
    codes = torch.randint(0, 8, (11, 4, 16), generator=generator)
    codes[..., 0] = 7
    signs = torch.where(torch.rand(codes.shape, generator=generator) < 0.5, -1.0, 1.0)
    scales = 2.0 ** torch.randint(-6, 8, (11, 4, 1), generator=generator)
    scales[:, 0] = 448.0
    x = (signs * torch.tensor(VALUES)[codes] * scales * 2.0**-9).flatten(1)
    assert torch.equal(fake_quantize_nvfp4(x, per_row), x)


def test_a_row_of_its_own_scale_does_not_see_the_others():
    x = random((5, 48))
    loud = torch.cat([x, 1e4 * random((2, 48), seed=6)])
    assert torch.equal(fake_quantize_nvfp4(loud, per_row=True)[:5], fake_quantize_nvfp4(x, per_row=True))
    assert torch.equal(fake_quantize_nvfp4(x, per_row=True)[3], fake_quantize_nvfp4(x[3]))
    assert not torch.equal(fake_quantize_nvfp4(loud)[:5], fake_quantize_nvfp4(x))


@pytest.mark.parametrize("per_row", [False, True], ids=["tensor", "row"])
@pytest.mark.parametrize("level", [0.0, 1e-45, 1e-40, 5e-36])
def test_what_is_too_small_for_a_scale_is_zero(level, per_row):
    x = level * random((3, 35)).sign()
    assert torch.equal(fake_quantize_nvfp4(x, per_row), torch.zeros_like(x))
    assert torch.equal(split_nvfp4(x, per_row)[0], torch.zeros_like(x))


def test_a_broken_number_is_not_hidden():
    x = random((3, 32))
    x[1, 5] = math.nan
    assert fake_quantize_nvfp4(x).isnan().any()
    assert fake_quantize_nvfp4(x, per_row=True).isnan().any(dim=1).tolist() == [False, True, False]


@pytest.mark.parametrize(
    "x", [torch.tensor(1.0), torch.empty(0, 16), torch.empty(3, 0)], ids=["scalar", "rows", "columns"]
)
def test_nothing_cannot_be_quantised(x):
    for function in (split_nvfp4, fake_quantize_nvfp4):
        with pytest.raises(ValueError, match="at least one element"):
            function(x)
