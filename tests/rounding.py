"""Another processor's rounding on this one: `pytest -p tests.rounding` adds it to every matrix product.

Kernels of other processors sum in another order, and which kernel runs depends on shapes and on memory alignment. So
the result of each float32 product is moved by up to one unit of rounding (of itself, and of the root mean square of all
of them, since sums cancel), by numbers that depend on the shapes and alignments of what is multiplied and nothing else:
runs of the same code on the same shapes stay equal bit for bit, and everything else differs as it may elsewhere.
A test that fails under it holds a tolerance that was read off one machine (tests/tolerances.py derives them).
"""

import zlib
from functools import lru_cache

import torch

UNITS = 1.0
library = torch.library.Library("aten", "IMPL")


@lru_cache(maxsize=512)
def units(address: int, shape: tuple[int, ...]) -> torch.Tensor:
    """Return numbers in [-UNITS, UNITS) times the unit of float32, of a seed."""
    numbers = torch.rand(shape, generator=torch.Generator().manual_seed(address))
    return (2 * numbers - 1) * (UNITS * torch.finfo(torch.float32).eps)


def moved(result: torch.Tensor, *operands: torch.Tensor | None) -> torch.Tensor:
    """Return a result as another kernel would have rounded it."""
    if result.dtype != torch.float32 or not result.numel():
        return result
    places = [(tuple(one.shape), one.stride(), one.data_ptr() % 64) for one in operands if one is not None]
    noise = units(zlib.crc32(repr(places).encode()), tuple(result.shape))
    size = result.nan_to_num(0.0, 0.0, 0.0).square().mean().sqrt()
    return result + noise * (result.abs() + size)


def mm(one, other):
    """Multiply two matrices."""
    result = one.new_empty(one.shape[0], other.shape[1])
    return moved(torch.ops.aten.mm.out(one, other, out=result), one, other)


def addmm(bias, one, other, *, beta=1, alpha=1):
    """Multiply two matrices and add a bias."""
    result = one.new_empty(one.shape[0], other.shape[1])
    return moved(torch.ops.aten.addmm.out(bias, one, other, beta=beta, alpha=alpha, out=result), one, other)


def bmm(one, other):
    """Multiply batches of matrices."""
    result = one.new_empty(one.shape[0], one.shape[1], other.shape[2])
    return moved(torch.ops.aten.bmm.out(one, other, out=result), one, other)


def convolution(signal, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    """Convolve."""
    result = torch.ops.aten._convolution(
        signal, weight, bias, stride, padding, dilation, transposed, output_padding, groups, False, False, True, False
    )
    return moved(result, signal, weight)


for name, function in (("mm", mm), ("addmm", addmm), ("bmm", bmm), ("convolution", convolution)):
    library.impl(name, function, "CPU")
