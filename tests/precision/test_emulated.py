"""Emulations: their operands are exact in bfloat16, and their products are sums of those operands in float32.

No CUDA device is there. Its product of bfloat16 operands with a float32 result is registered for CPU tensors instead,
and its dispatch is watched on fake tensors.
"""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from diffrl.functional.formats.fp8 import fake_quantize_fp8
from diffrl.functional.formats.int8 import fake_quantize_int8
from diffrl.functional.formats.mxfp8 import fake_quantize_mxfp8
from diffrl.functional.formats.nvfp4 import fake_quantize_nvfp4
from diffrl.precision.choice import find_backend
from diffrl.precision.engines.emulated import product
from diffrl.precision.formats import PRECISIONS
from diffrl.precision.observe import watching
from tests.precision.made import random

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
KINDS = {
    "nvfp4": (fake_quantize_nvfp4, lambda x: fake_quantize_nvfp4(x, per_row=True)),
    "mxfp8": (fake_quantize_mxfp8, fake_quantize_mxfp8),
    "fp8": (fake_quantize_fp8, fake_quantize_fp8),
    "int8": (fake_quantize_int8, fake_quantize_int8),
}
"""Of each precision what a weight and an input become: each held to its definition by tests of its own."""
UNIT = 2.0**-24
"""float32's unit of rounding."""

every_kind = pytest.mark.parametrize("precision", KINDS)


def wild(rows, columns):
    """Rows from 2^-60 to 2^60, some with outliers, one of zeros."""
    x = random(rows, columns) * 2.0 ** torch.linspace(-60, 60, rows).round()[:, None]
    x[1::3] *= 40 ** random(rows, columns, seed=1)[1::3]
    x[4] = 0.0
    return x


@pytest.fixture
def cuda_product():
    """CUDA's product of bfloat16 operands into float32, on the CPU; torch has none there."""
    library = torch.library.Library("aten", "IMPL")
    library.impl("mm.dtype", lambda x, y, dtype: x.to(dtype) @ y.to(dtype), "CPU")
    yield
    library._destroy()


@every_kind
def test_the_operands_lose_nothing_in_bfloat16(precision):
    backend = PRECISIONS[precision].runners["emulated"].make()
    for split, whole, x in zip(
        (backend.split_weight, backend.split_input), KINDS[precision], (wild(29, 208), wild(31, 203)), strict=True
    ):
        values, outer = split(x)
        assert torch.equal(values.bfloat16().float(), values.float()), "0 values differ"
        torch.testing.assert_close(values.float() * outer, whole(x), rtol=3 * UNIT, atol=0)


@every_kind
@pytest.mark.parametrize("device", [CPU, CUDA], ids=str)
def test_the_product_is_the_float64_one_of_the_same_operands(precision, device, cuda_product):
    """Bound: K + 2 roundings of float32 over the sum of magnitudes, and one of the output's dtype on CUDA."""
    rows, columns, outputs = 23, 176, 13
    layer = nn.Linear(columns, outputs).requires_grad_(False)
    backend = PRECISIONS[precision].runners["emulated"].make().on(device)
    made, x = backend.convert(layer), random(rows, columns, seed=2).to(backend.outside_dtype)
    round_weight, round_input = KINDS[precision]
    w, v = round_weight(layer.weight).double(), round_input(x.float()).double()
    exact, magnitudes = v @ w.T + layer.bias.double(), v.abs() @ w.abs().T + layer.bias.double().abs()
    bound = (columns + 2 + 6) * UNIT * magnitudes  # 6: of the scales in the operands that it is held to
    if device == CUDA:
        bound = bound + 2.0**-8 * (exact.abs() + bound)
    y = made(x)
    assert y.dtype == backend.outside_dtype
    assert bool(((y.double() - exact).abs() <= bound).all())


@every_kind
def test_on_cuda_the_layer_multiplies_bfloat16_and_never_rounds_the_sum(precision):
    """On fake tensors: one product, both operands bfloat16, its result float32."""
    results = []

    class Products(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if func is torch.ops.aten.mm.dtype:
                results.append(out.dtype)
            return out

    backend = PRECISIONS[precision].runners["emulated"].make().on(CUDA)
    with FakeTensorMode(allow_non_fake_inputs=True):
        made = backend.convert(nn.Linear(48, 32, device=CUDA))
        x = torch.empty(2, 5, 48, device=CUDA, dtype=torch.bfloat16)
        with watching({"layer": made}) as seen, Products():
            y = made(x)
    assert seen.products["layer"] == {"bfloat16"} and results == [torch.float32]
    assert (y.dtype, y.device.type, y.shape) == (torch.bfloat16, "cuda", (2, 5, 32))
    assert (backend.compute_dtype, made.weight.dtype) == (torch.bfloat16, torch.bfloat16)


@every_kind
def test_on_a_cpu_everything_is_float32(precision):
    backend = find_backend(precision, "emulated", CPU)
    made = backend.convert(nn.Linear(48, 32))
    assert made.weight.dtype == backend.compute_dtype == backend.outside_dtype == torch.float32
    assert product(random(3, 48), random(32, 48)).dtype == torch.float32


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize(
    ("precision", "engine"), [*((precision, "emulated") for precision in KINDS), ("int8", "torch"), ("int8", "auto")]
)
def test_a_plan_counts_the_bytes_that_a_layer_holds(precision, engine, device):
    backend = find_backend(precision, engine, CPU).on(torch.device(device))
    columns, outputs = 512, 384
    made = backend.convert(nn.Linear(columns, outputs, bias=False))
    held = sum(p.numel() * p.element_size() for p in made.parameters())
    quantised, rest = PRECISIONS[precision].copy_bytes(engine, device)
    assert held == pytest.approx(quantised * columns * outputs, rel=0.01)  # the outer scales vanish
    assert rest == backend.outside_dtype.itemsize
