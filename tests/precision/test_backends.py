"""Who runs what: the choice of a backend, int8 in integers, and the checks that catch a layer that cheats."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from diffrl.errors import ConfigError
from diffrl.functional.formats.fp8 import fake_quantize_fp8
from diffrl.precision.checks import product_names
from diffrl.precision.choice import find_backend, sums_int8_exactly
from diffrl.precision.copies import make_copy
from diffrl.precision.engines.native import Int8Linear
from diffrl.precision.observe import watching
from diffrl.precision.report import PrecisionError
from tests.precision.made import random

CPU = torch.device("cpu")


HONEST = [
    ("bfloat16", "auto"),
    ("int8", "auto"),
    ("fp8", "auto"),
    ("fp8", "emulated"),
    ("mxfp8", "emulated"),
    ("nvfp4", "emulated"),
]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(48, 64), nn.GELU(), nn.Linear(64, 32, bias=False))


def make(precision, engine):
    return make_copy(network(), precision, engine, (), CPU)


class TestChoice:
    @pytest.mark.parametrize("precision", ["nvfp4", "mxfp8"])
    def test_auto_never_falls_back(self, precision, monkeypatch):
        monkeypatch.setattr("diffrl.precision.choice.sums_int8_exactly", lambda: True)
        with pytest.raises(ConfigError) as error:
            find_backend(precision, "auto", CPU)
        assert str(error.value) == (
            f"rollout.explore.precision {precision} needs an NVIDIA GPU of compute capability 10.0 or more. "
            "Got cpu. Set rollout.explore.engine: emulated (same numbers, no speed), or precision: fp8, int8 or "
            "bfloat16."
        )

    @pytest.mark.parametrize(
        ("precision", "found", "message"),
        [
            ("mxfp8", (12, 0), r"mxfp8 cannot run here: torchao: .* torch multiplies MXFP8 there in some layouts only"),
            ("fp8", (8, 6), r"8.9 or more. Got NVIDIA X of 8.6. Set .* precision: int8 or bfloat16.$"),
        ],
    )
    def test_gpus_that_cannot(self, monkeypatch, precision, found, message):
        pretend(monkeypatch, found)
        with pytest.raises(ConfigError, match=message):
            find_backend(precision, "auto", torch.device("cuda"))

    @pytest.mark.parametrize(
        ("precision", "found", "engine", "scaling"),
        [
            ("fp8", (9, 0), "torchao", "a scale per token and per output channel"),
            ("fp8", (10, 0), "torchao", "a scale per token and per output channel"),
            ("fp8", (12, 0), "torchao", "one scale per tensor"),
            ("nvfp4", (10, 0), "torchao", "a scale per block of 16 and one per tensor"),
            ("nvfp4", (12, 0), "torchao", "a scale per block of 16 and one per tensor"),
            ("mxfp8", (10, 3), "torchao", "a power of two per block of 32"),
            ("int8", (8, 0), "torch", "a scale per token and per output channel"),
        ],
    )
    def test_gpus_that_can(self, monkeypatch, precision, found, engine, scaling):
        pytest.importorskip("torchao")
        pretend(monkeypatch, found)
        backend = find_backend(precision, "auto", torch.device("cuda"))
        assert (backend.name, backend.scaling, backend.outside_dtype) == (engine, scaling, torch.bfloat16)
        assert backend.real
        assert backend.batch_dependent is ("per tensor" in scaling)

    @pytest.mark.parametrize(
        ("precision", "engine", "message"),
        [
            ("float32", "auto", r"one of bfloat16, int8, fp8, mxfp8, nvfp4. Got 'float32'. .* rollout.explore: null"),
            ("fp4", "auto", r"must be one of bfloat16, int8, fp8, mxfp8, nvfp4. Got 'fp4'.$"),
            (
                "int8",
                "emulate",
                r"rollout.explore.engine must be .* Got 'emulate'. Did you mean 'emulated'\? Known: em",
            ),
            ("bfloat16", "emulated", r"rollout.explore.engine must be one that runs bfloat16: auto, torch"),
            ("mxfp8", "torch", r"must be one that runs mxfp8: auto, .*emulated.* Got 'torch'."),
            ("nvfp4", "te", r"engine te cannot run nvfp4 here: nvfp4 needs an NVIDIA GPU .* not a CPU. .*emulated"),
        ],
    )
    def test_unknown_names(self, precision, engine, message):
        with pytest.raises(ConfigError, match=message):
            find_backend(precision, engine, CPU)


def pretend(monkeypatch, capability):
    """A GPU of this compute capability, as far as the choice of a backend asks."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA X")
    monkeypatch.setattr(torch.version, "cuda", "13.0")


@pytest.mark.skipif(not sums_int8_exactly(), reason="this CPU has no product of int8")
class TestInt8:
    def test_it_multiplies_integers_exactly(self):
        """Inputs that are integers times a power of two a row: nothing is rounded, so Python's integers are exact."""
        generator = torch.Generator().manual_seed(1)
        x, w = (torch.randint(-127, 128, shape, generator=generator) for shape in ((2, 5, 37), (11, 37)))
        x[..., 3] = w[:, 5] = 127
        row = 2.0 ** torch.arange(-3, 2).reshape(1, 5, 1)
        column = 2.0 ** (torch.arange(11) - 6)
        layer = nn.Linear(37, 11, bias=False)
        layer.weight.data = w * column[:, None]
        y = Int8Linear(layer)(x * row)
        for i in range(2):
            for j in range(5):
                for k in range(11):
                    exact = sum(int(a) * int(b) for a, b in zip(x[i, j], w[k], strict=True))
                    assert float(y[i, j, k]) == exact * float(row[0, j]) * float(column[k])

    @pytest.mark.parametrize("rows", [1, 16, 41])
    @pytest.mark.parametrize("bias", [False, True])
    def test_any_numbers_against_a_naive_oracle(self, rows, bias):
        torch.manual_seed(0)  # a weight halfway between two codes may fall either way
        layer = nn.Linear(53, 13, bias=bias).requires_grad_(False)
        x = random(rows, 53)
        x[0] = 0.0
        y = Int8Linear(layer)(x)
        for i in range(rows):
            sx = float(x[i].abs().max()) / 127 or 1.0
            qx = [max(-127, min(127, round(float(v) / sx))) for v in x[i]]
            for k in range(13):
                sw = float(layer.weight[k].abs().max()) / 127
                qw = [max(-127, min(127, round(float(v) / sw))) for v in layer.weight[k]]
                offset = float(layer.bias[k]) if bias else 0.0
                expected = sum(a * b for a, b in zip(qx, qw, strict=True)) * sx * sw + offset
                assert math.isclose(float(y[i, k]), expected, rel_tol=1e-4, abs_tol=1e-5)

    def test_the_largest_products_do_not_overflow_or_saturate(self):
        layer = nn.Linear(1024, 3, bias=False)
        layer.weight.data = torch.full((3, 1024), 2.0)
        torch.testing.assert_close(Int8Linear(layer)(torch.full((2, 1024), -3.0)), torch.full((2, 3), -6144.0))


def test_fp8_rounds_rows_to_three_bits():
    x = random(7, 31) * 2.0 ** torch.arange(-60, 10, 10).reshape(7, 1)
    x[2] = 0.0
    rounded = fake_quantize_fp8(x)
    scaled = rounded / torch.where(x == 0, 1.0, x.abs().amax(dim=1, keepdim=True)) * 448
    torch.testing.assert_close(scaled, scaled.to(torch.float8_e4m3fn).float(), rtol=1e-5, atol=1e-6)
    assert ((rounded - x).abs() <= x.abs() / 16 * 1.001 + x.abs().amax(dim=1, keepdim=True) / 448 / 2**10 * 1.001).all()
    assert torch.equal(fake_quantize_fp8(x[:1]), rounded[:1])


class TestChecks:
    """`check` catches layers that do something other than reported."""

    def expect(self, made, source, message, forward=None):
        with pytest.raises(PrecisionError, match=message):
            made.check(source, forward)

    def test_an_honest_copy_passes(self):
        for precision, engine in HONEST:
            made = make(precision, engine)
            made.check(network(), lambda made=made: made.module(random(2, 3, 48)))

    def test_a_layer_in_another_dtype(self, monkeypatch):
        made = make("int8", "auto")
        monkeypatch.setattr(
            Int8Linear, "forward", lambda self, x: F.linear(x, self.weight.float() * self.scale[:, None])
        )
        self.expect(made, network(), r"int8 copy \(torch\).*0 multiplied float32, not int8; 2 multiplied float32")

    def test_a_layer_that_the_forward_leaves_out(self):
        made = make("int8", "auto")
        self.expect(
            made,
            network(),
            r"1 deviations: 2 multiplied nothing, not int8",
            lambda: made.module.inner[0](random(3, 48)),
        )

    def test_a_layer_that_was_put_back(self):
        made = make("nvfp4", "emulated")
        made.module.inner[2] = nn.Linear(64, 32, bias=False)
        self.expect(made, network(), "1 deviations: 2 is not in low precision")

    def test_a_linear_layer_that_is_in_no_list(self):
        made = make("nvfp4", "emulated")
        made.module.inner.append(nn.Linear(32, 3))
        self.expect(made, network(), "1 deviations: 3 is not in low precision")

    def test_weights_that_were_not_rounded(self):
        made, source = make("nvfp4", "emulated"), network()
        made.module.inner[0].weight.data.copy_(source[0].weight)
        made.module.inner[0].outer.data.fill_(1.0)
        made.module.inner[0].split_input = lambda x: (x, torch.ones(()))
        self.expect(made, source, "2 deviations: .*; 0: its output is that of the unquantised layer")

    def test_activations_that_were_not_rounded(self):
        made, source = make("nvfp4", "emulated"), network()
        made.module.inner[0].split_input = lambda x: (x, torch.ones(()))
        self.expect(made, source, r"0: it rounds otherwise than planned; 0: it is .* from its emulation")

    def test_stale_weights(self):
        made, source = make("nvfp4", "emulated"), network()
        source[2].weight.data.mul_(4)
        self.expect(made, source, "2: its relative error is 0.7")

    def test_numbers_that_are_not_finite(self):
        made, source = make("nvfp4", "emulated"), network()
        made.module.inner[2].weight.data[3, 5] = math.nan
        self.expect(made, source, "2: its output is not finite")

    def test_a_layer_of_zeros_is_fine(self):
        source = network()
        nn.init.zeros_(source[2].weight)
        for precision, engine in HONEST:
            made = make_copy(source, precision, engine, (), CPU)
            assert torch.equal(made.module(random(3, 48)).float(), torch.zeros(3, 32))

    def test_products_are_seen_in_any_layout(self):
        layer = nn.Linear(5, 3)
        for x in (random(2, 5), random(7, 2, 5), random(2, 5, 7).transpose(1, 2), random(5)):
            with watching({"it": layer}) as seen:
                layer(x)
            assert product_names(["it"], seen) == {"it": "float32"}
        with watching({"it": layer}) as seen:
            pass
        assert product_names(["it"], seen) == {"it": "nothing"}
        assert not layer._forward_hooks and not layer._forward_pre_hooks


def outliers(name):
    """As trained networks have them: a channel of large weights, heavy tails, a bias that outweighs the product."""
    generator = torch.Generator().manual_seed(0)
    layer = torch.nn.Linear(256, 256)
    with torch.no_grad():
        layer.weight.normal_(std=0.02, generator=generator)
        if name == "channel":
            layer.weight[:, 3] *= 40
        elif name == "tails":
            layer.weight.div_(torch.rand(256, 256, generator=generator).clamp_min(1e-3).sqrt())
        else:
            layer.weight.mul_(0.05)
            layer.bias.normal_(generator=generator)
    return torch.nn.Sequential(layer)


@pytest.mark.parametrize("kind", ["channel", "tails", "bias"])
@pytest.mark.parametrize(
    ("precision", "engine"),
    [("bfloat16", "auto"), ("int8", "auto"), ("int8", "torchao"), ("fp8", "auto"), ("nvfp4", "emulated")],
)
def test_healthy_layers_with_outliers_are_not_refused(precision, engine, kind):
    source = outliers(kind)
    make_copy(source, precision, engine, (), "cpu").sync_weights(source)
