"""torchao's weights: what `quantize_` would make, refreshed in place, told apart from what only looks like them."""

import pytest
import torch
from torch import nn

from diffrl.functional.formats.mxfp8 import fake_quantize_mxfp8
from diffrl.functional.formats.nvfp4 import fake_quantize_nvfp4
from diffrl.precision.checks import pointers
from diffrl.precision.choice import sums_int8_exactly
from diffrl.precision.engines import torchao
from diffrl.precision.engines.torchao import fp8_config, int8_config, mxfp8_config, nvfp4_config
from diffrl.precision.formats import PRECISIONS
from diffrl.precision.report import PrecisionError
from tests.precision.made import relative

quantization = pytest.importorskip("torchao.quantization")
MAKERS = {
    **{name: known.runners["torchao"].make for name, known in PRECISIONS.items() if "torchao" in known.runners},
    "fp8 per tensor": lambda: torchao.TorchaoFp8.scaled_by("tensor", 0.1),
}
every = pytest.mark.parametrize("maker", MAKERS.values(), ids=list(MAKERS))


def layer(seed=0, bias=True):
    torch.manual_seed(seed)
    return nn.Linear(64, 48, bias=bias).requires_grad_(False)


@every
def test_weights_are_refreshed_in_place(maker):
    backend, other = maker(), layer(1)
    other.weight.mul_(3)
    made = backend.convert(layer())
    where = pointers(made)
    assert len(where) >= 3 and backend.inspect(made) is None
    assert relative(made.dequantised(), layer().weight) < backend.largest_error
    made.refresh(other.weight, other.bias)
    fresh = backend.convert(other)
    assert pointers(made) == where
    assert torch.equal(made.dequantised(), fresh.dequantised()) and torch.equal(made.bias, other.bias.bfloat16())
    assert relative(made.dequantised(), other.weight) < backend.largest_error < relative(other.weight, layer().weight)


@every
def test_zeros_stay_zeros(maker):
    made = maker().convert(layer())
    for weight in (torch.zeros(48, 64), torch.zeros(48, 64).index_fill_(0, torch.arange(1, 48), 0.5)):
        made.refresh(weight, None)
        torch.testing.assert_close(made.dequantised(), weight, rtol=0.01, atol=0)


@pytest.mark.parametrize(
    ("maker", "config"), [(MAKERS["int8"], int8_config), (MAKERS["mxfp8"], mxfp8_config)], ids=["int8", "mxfp8"]
)
def test_it_is_what_quantize_makes(maker, config):
    theirs = layer(bias=False).bfloat16()
    quantization.quantize_(theirs, config())
    ours = maker().convert(layer(bias=False))
    ours.weight.copy_(theirs.weight)  # refuses whatever differs in class, shapes or settings
    assert torch.equal(maker().convert(layer()).dequantised(), theirs.weight.dequantize(torch.float32))


def test_rounding_is_ours_bit_for_bit():
    weight = layer().weight.bfloat16().float()
    assert torch.equal(MAKERS["nvfp4"]().convert(layer()).dequantised(), fake_quantize_nvfp4(weight))
    assert torch.equal(MAKERS["mxfp8"]().convert(layer()).dequantised(), fake_quantize_mxfp8(weight))


@pytest.mark.parametrize(
    "maker",
    [
        pytest.param(MAKERS["int8"], marks=pytest.mark.skipif(not sums_int8_exactly(), reason="no product of int8")),
        MAKERS["fp8"],
        MAKERS["fp8 per tensor"],
    ],
    ids=["int8", "row", "tensor"],
)
def test_what_runs_on_the_cpu_multiplies_as_emulated(maker):
    backend, generator = maker(), torch.Generator().manual_seed(2)
    x = torch.randn(3, 7, 64, generator=generator).bfloat16()
    x[1, 2] = 0.0
    y = backend.convert(layer(bias=False))(x)
    assert y.dtype == torch.bfloat16 and y.shape == (3, 7, 48) and bool((y[1, 2] == 0).all())
    emulated = backend.emulate(x.float().reshape(21, 64), layer().weight).reshape(3, 7, 48)
    exact = x.float() @ layer().weight.T
    assert relative(y.float(), emulated) < 0.25 * relative(emulated, exact) + 0.002


def test_the_configurations_are_those_of_the_table():
    fp8 = fp8_config("row")
    assert [type(g).__name__ for g in fp8.granularity] == ["PerRow", "PerRow"]
    assert [type(g).__name__ for g in fp8_config("tensor").granularity] == ["PerTensor", "PerTensor"]
    assert fp8.kernel_preference.name == "TORCH" and fp8.activation_value_lb > 0
    assert [type(int8_config().granularity).__name__, int8_config().act_mapping_type.name] == ["PerRow", "SYMMETRIC"]
    assert (mxfp8_config().block_size, mxfp8_config().scaling_mode.name) == (32, "RCEIL")
    assert nvfp4_config(False).use_dynamic_per_tensor_scale and not nvfp4_config(False).use_triton_kernel
    assert nvfp4_config(True).use_triton_kernel


class TestInspection:
    @every
    def test_a_weight_only_one_is_told(self, maker):
        made = maker().convert(layer())
        made.weight.act_quant_kwargs = None
        assert maker().inspect(made) == "its activations are not quantised"

    @every
    def test_a_plain_weight_is_told(self, maker):
        made = maker().convert(layer())
        made.weight = nn.Parameter(layer().weight.bfloat16(), requires_grad=False)
        assert maker().inspect(made).startswith("its weight is a ")

    def test_another_precision_is_told(self):
        assert (
            MAKERS["fp8"]().inspect(MAKERS["int8"]().convert(layer()))
            == "its weight is a Int8Tensor, not a Float8Tensor"
        )


@pytest.mark.parametrize(
    ("maker", "sizes", "fits"),
    [
        (MAKERS["int8"], (24, 8), True),
        (MAKERS["int8"], (24, 12), False),
        (MAKERS["fp8"], (32, 48), True),
        (MAKERS["fp8"], (40, 48), False),
        (MAKERS["mxfp8"], (64, 48), True),
        (MAKERS["mxfp8"], (48, 48), False),
        (MAKERS["nvfp4"], (48, 16), True),
        (MAKERS["nvfp4"], (48, 8), False),
    ],
)
def test_sizes_that_torchao_would_pass_over(maker, sizes, fits):
    why = maker().unfit(nn.Linear(*sizes, device="meta"))
    assert why is None if fits else why.startswith(f"{sizes[0]} x {sizes[1]} is no multiple of ")


def test_a_whole_copy_in_int8(adapter, velocity, sd3_copy):
    live, source = velocity(adapter), adapter.transformer
    made = sd3_copy(source, "int8", "torchao")
    with made.in_place_of(adapter):
        made.check(source, lambda: velocity(adapter))
        assert relative(velocity(adapter), live) < 0.03
    assert (made.report.engine, made.report.compute_dtype, made.report.outside_dtype) == (
        "torchao",
        "int8",
        "bfloat16",
    )
    made.module.inner.transformer_blocks[0].attn.to_q.weight.act_quant_kwargs = None
    with pytest.raises(PrecisionError, match="attn.to_q: its activations are not quantised"):
        made.check(adapter.transformer)
