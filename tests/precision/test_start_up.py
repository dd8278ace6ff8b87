"""The start-up checks on real networks: coverage, shapes, layers and weights; each must be able to fail."""

import io
import math
from collections import Counter
from contextlib import redirect_stdout

import pytest
import torch
import yaml
from torch import nn
from torch.nn import functional as F
from torch.utils.flop_counter import flop_registry

from diffrl.precision.checks import product_names
from diffrl.precision.copies import make_copy
from diffrl.precision.engines.native import Fp8Linear, Int8Linear
from diffrl.precision.observe import flops_coverage, watching
from diffrl.precision.report import PrecisionError, kernel_names, slow_note, speed_up

CPU = torch.device("cpu")


class Block(nn.Module):
    """Modulation that sees one row a sample, tokens, attention, convolutions with and without neighbours."""

    def __init__(self):
        super().__init__()
        self.modulation = nn.Linear(11, 24)
        self.qkv, self.out = nn.Linear(24, 72), nn.Linear(24, 24)
        self.point, self.depth = nn.Conv2d(24, 17, 1), nn.Conv2d(24, 24, 3, padding=1, groups=24)
        self.kept = nn.Linear(17, 5)

    def forward(self, x, condition):
        x = x + self.modulation(condition)[:, None]
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 12)).permute(2, 0, 3, 1, 4)
        x = self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        x = self.depth(x.transpose(1, 2).unflatten(-1, (7, 5)))
        return self.kept(self.point(x).flatten(2).transpose(1, 2))


def block():
    torch.manual_seed(0)
    return Block().requires_grad_(False).eval()


def inputs(batch=3):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(batch, 35, 24, generator=generator), torch.randn(batch, 11, generator=generator)


def expected_flops(batch=3):
    """By hand: two operations a multiplication."""
    tokens = 35
    return {
        "quantised": 2 * batch * (11 * 24 + tokens * (24 * 72 + 24 * 24 + 24 * 17)),
        "linear": 2 * batch * tokens * 17 * 5,
        "convolution": 2 * batch * tokens * 24 * 9,
        "attention": 2 * batch * 2 * tokens * tokens * 12 * 2,
    }


@pytest.mark.parametrize(("precision", "engine"), [("int8", "auto"), ("fp8", "auto"), ("nvfp4", "emulated")])
def test_coverage_is_counted_by_rows(precision, engine):
    made = make_copy(block(), precision, engine, ["kept"], CPU)
    made.check(block(), lambda: made.module(*inputs()), batches=(1, 4))
    assert made.report.flops == expected_flops()
    assert made.report.flops_quantised == expected_flops()["quantised"] / sum(expected_flops().values())
    parameters = sum(p.numel() for p in block().parameters())
    converted = 11 * 24 + 24 * 72 + 24 * 24 + 24 * 17
    assert made.report.parameters_quantised == pytest.approx(converted / parameters)
    assert made.report.weights_quantised == pytest.approx(converted / (converted + 17 * 5))
    sizes = {(3, 11, 24), (105, 24, 72), (105, 24, 24), (105, 24, 17)}
    assert set(made.report.shapes) == sizes | {(4 * m, k, n) for m, k, n in sizes}


def test_operators_of_higher_order_are_seen():
    """torchao's int8 product on CUDA is one; on the CPU it widens its operands, and that is what must be said."""
    from torch._higher_order_ops.out_dtype import out_dtype

    class Widened(nn.Module):
        def forward(self, x):
            return out_dtype(torch.ops.aten.mm.default, torch.int32, x, x.T)

    layer = Widened()
    with watching({"it": layer}) as seen:
        layer(torch.ones(32, 16, dtype=torch.int8))
    assert product_names(["it"], seen) == {"it": "int32"}


def test_coverage_without_a_copy():
    network = block()
    found = flops_coverage({"qkv": network.qkv}, lambda: network(*inputs())).flops
    own = 2 * 105 * 24 * 72
    assert Counter(found) == Counter(expected_flops()) + Counter(
        {"linear": expected_flops()["quantised"] - own - 2 * 105 * 24 * 17, "convolution": 2 * 105 * 24 * 17}
    ) - Counter({"quantised": expected_flops()["quantised"] - own})


def test_attention_that_torch_does_not_count_is_counted(monkeypatch):
    """Before 2.15 torch's table lacks the CPU's kernel."""
    counted = {op: count for op, count in flop_registry.items() if "for_cpu" not in str(op)}
    monkeypatch.setattr("torch.utils.flop_counter.flop_registry", counted)
    made = make_copy(block(), "int8", "auto", ["kept"], CPU)
    made.check(block(), lambda: made.module(*inputs()))
    assert made.report.flops == expected_flops() and not made.report.notes


def test_attention_that_nobody_counts_is_said():
    with torch.library._scoped_library("foreign", "DEF") as library:
        library.define("flash_attn_forward(Tensor q, Tensor k, Tensor v) -> Tensor")
        library.impl("flash_attn_forward", lambda q, k, v: q + k + v, "CompositeExplicitAutograd")

        class Foreign(Block):
            def forward(self, x, condition):
                return torch.ops.foreign.flash_attn_forward(*super().forward(x, condition).expand(3, 3, 35, 5))

        source = Foreign().requires_grad_(False).eval()
        made = make_copy(source, "int8", "auto", ["kept"], CPU)
        made.check(source, lambda: made.module(*inputs()))
    assert made.report.flops == expected_flops()
    assert any("flash_attn_forward" in note and "missing" in note for note in made.report.notes)


class TestFailures:
    def made(self, precision="int8"):
        return make_copy(block(), precision, "auto", ["kept"], CPU)

    def test_a_shape_that_the_hardware_refuses(self, monkeypatch):
        made, forward = self.made("fp8"), Fp8Linear.forward

        def picky(self, x):
            if x.numel() // x.shape[-1] > 200:
                raise RuntimeError("CUBLAS_STATUS_NOT_SUPPORTED\nmore")
            return forward(self, x)

        monkeypatch.setattr(Fp8Linear, "forward", picky)
        made.check(block(), lambda: made.module(*inputs()))
        with pytest.raises(PrecisionError, match=r"210 x 24 .* failed: RuntimeError: CUBLAS_STATUS_NOT_SUPPORTED;"):
            made.check(block(), lambda: made.module(*inputs()), batches=(2,))

    def test_a_shape_that_overflows(self, monkeypatch):
        made, forward = self.made(), Int8Linear.forward
        monkeypatch.setattr(Int8Linear, "forward", lambda self, x: forward(self, x) / (x.numel() // x.shape[-1] != 12))
        with pytest.raises(PrecisionError, match=r"1 deviations: modulation: the product of 12 x 11 .* is not finite"):
            made.check(block(), lambda: made.module(*inputs()), batches=(4,))

    @pytest.mark.parametrize("precision", ["int8", "fp8"])
    def test_a_layer_of_another_kind(self, precision):
        made = self.made(precision)
        made.module.inner.qkv.weight = nn.Parameter(torch.randn(72, 24), requires_grad=False)
        with pytest.raises(PrecisionError, match=r"qkv.weight moved.*qkv: its weight is torch.float32, not torch."):
            made.check(block())

    def test_a_push_that_moves_storage(self, monkeypatch):
        made = self.made()

        def careless(self, weight, bias):
            self.weight = nn.Parameter(self.weight.data.clone(), requires_grad=False)

        monkeypatch.setattr(Int8Linear, "refresh", careless)
        with pytest.raises(PrecisionError, match="modulation.weight moved to another storage"):
            made.sync_weights(block())

    def test_a_push_that_does_not_arrive_is_found_within_a_round(self, monkeypatch):
        made, source = self.made(), block()
        assert len(made.report.quantised) == 4
        source.point.weight.mul_(1.01)
        for layer in made._layers.values():  # a fresh layer is still filled
            monkeypatch.setattr(layer, "refresh", lambda weight, bias: None)
        with pytest.raises(PrecisionError, match="point: its weight is .* from a fresh conversion of the pushed one"):
            for _ in range(2):
                made.sync_weights(source)

    def test_weights_that_are_not_finite(self):
        source = block()
        source.modulation.weight[3, 5] = math.nan
        with pytest.raises(PrecisionError, match="modulation: its weight is not finite"):
            self.made().sync_weights(source)


class TestSpeed:
    def test_slow_layers_are_told(self):
        class Slow(nn.Linear):
            def forward(self, x):
                return sum(F.linear(x.float(), self.weight) for _ in range(300))

        class Nothing(nn.Linear):
            def forward(self, x):
                return x

        shapes = {"a": [(31, 64, 48)], "b": [(31, 64, 48), (7, 64, 48)]}
        ratio = {
            kind: speed_up({"a": kind(64, 48), "b": kind(64, 48)}, shapes, torch.bfloat16, CPU)
            for kind in (Slow, Nothing)
        }
        assert ratio[Slow] < 1 < ratio[Nothing]
        assert "at 0.50 of the speed of bfloat16" in slow_note("fp8", 0.5, compiled=False)
        assert "compile: true" in slow_note("fp8", 0.5, False) and slow_note("fp8", 0.5, True) is None
        assert slow_note("fp8", 1.2, False) is None and slow_note("fp8", None, False) is None
        assert speed_up({}, {}, torch.bfloat16, CPU) is None

    def test_cpus_have_no_kernels(self):
        assert kernel_names(lambda: None, CPU) == ()


@pytest.mark.long
def test_a_check_or_plan_for_a_gpu_says_that_float32_is_slow(run_settings, tmp_path):
    from diffrl.cli import main

    path = tmp_path / "c.yaml"

    def told(command, dtype):
        run_settings["model"] |= {"dtype": dtype, "device": "auto"}
        path.write_text(yaml.safe_dump(run_settings), encoding="utf-8")
        with redirect_stdout(io.StringIO()) as output, pytest.raises(SystemExit):
            main([command, str(path), "--gpu", "h100"])
        return " ".join(output.getvalue().split())

    for command in ("check", "plan"):
        assert "outside its matrix units" in told(command, "float32")
        assert "outside its matrix units" not in told(command, "bfloat16")


def test_who_explores_in_int8_on_a_cpu_is_told_where_it_is_planned_checked_and_begun(run_settings, tmp_path):
    from diffrl.cli import main
    from diffrl.config.load import make_config
    from diffrl.preflight.check import check_config
    from diffrl.preflight.preview import Preview
    from diffrl.preflight.stages import open_session

    run_settings["model"]["device"] = "cpu"

    def notes(precision):
        run_settings["rollout"]["explore"] = {"precision": precision, "candidates": 8, "keep": 4}
        config = make_config(run_settings)
        path = tmp_path / "c.yaml"
        path.write_text(yaml.safe_dump(run_settings), encoding="utf-8")
        with redirect_stdout(io.StringIO()) as planned, pytest.raises(SystemExit):
            main(["plan", str(path)])
        return (
            planned.getvalue(),
            "\n".join(check_config(config)),
            " ".join(open_session(Preview(config), tmp_path).notes),
        )

    assert all("slower than float32" in text for text in notes("int8"))
    assert not any("slower than float32" in text for text in notes("bfloat16"))
