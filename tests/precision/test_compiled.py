"""Compiled copies: new weights without a new graph, any batch size with three, on a tiny transformer."""

import itertools

import pytest
import torch
from torch import nn

from diffrl.precision.compiled import compile_network
from diffrl.precision.copies import make_copy
from diffrl.precision.report import PrecisionError
from diffrl.precision.weights import lora_layers, plain_copy
from tests.precision.made import relative

KINDS = [("bfloat16", "auto"), ("int8", "torchao"), ("fp8", "auto"), ("nvfp4", "emulated")]
"""What is left out differs from one of them in its rounding only."""


class Tiny(nn.Module):
    """One attention block, a strided input and a pointwise convolution."""

    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)
        self.point = nn.Conv2d(32, 16, 1)

    def forward(self, x, scale):
        x = x.flatten(2).transpose(1, 2) * scale[:, None, None]
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 16)).permute(2, 0, 3, 1, 4)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return self.point(x.transpose(1, 2).unflatten(-1, (4, 3)))


def tiny():
    torch.manual_seed(0)
    return Tiny().eval()


def inputs(batch):
    generator = torch.Generator().manual_seed(batch)
    return torch.randn(batch, 32, 4, 3, generator=generator), torch.rand(batch, generator=generator) + 0.5


@pytest.fixture(autouse=True)
def forget():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def disturbed(source):
    with torch.no_grad():
        for parameter in source.parameters():
            parameter.mul_(1.5)
    return source


@pytest.mark.parametrize(("precision", "engine"), KINDS)
def test_new_weights_without_a_new_graph(precision, engine):
    if engine == "torchao":
        pytest.importorskip("torchao")
    made, source = make_copy(tiny(), precision, engine, (), "cpu", compile="aot_eager"), tiny()
    before = made.module(*inputs(3))
    assert made.module.compiled.graphs == 1 and made.report.compiled
    made.sync_weights(disturbed(source))
    after = made.module(*inputs(3))
    assert made.module.compiled.graphs == 1
    with made.module.eager():
        eager = made.module(*inputs(3))
    assert made.module.compiled is not None and made.module.compiled.graphs == 1
    assert relative(after, eager) < 0.01 < 0.2 < relative(before, eager)
    with torch.no_grad():
        assert relative(after, source(*inputs(3))) < 0.3
    made.sync_weights(source)


@pytest.mark.long
def test_any_batch_size_with_three_graphs():
    made = make_copy(tiny(), "fp8", "auto", (), "cpu", compile=lambda graph, _: graph.forward)
    for batch in (2, 3, 5, 4, 1, 7, 2, 1, 11, 3):
        compiled = made.module(*inputs(batch))
        with made.module.eager():
            assert relative(compiled, made.module(*inputs(batch))) < 1e-5
    assert made.module.compiled.graphs <= 3
    made.sync_weights(tiny())


@torch._dynamo.config.patch(recompile_limit=2)
@pytest.mark.long
def test_many_copies_in_one_process():
    """torch.compile limits the graphs of a function; copies must not share one."""
    for _ in range(4):
        made = make_copy(tiny(), "int8", "auto", (), "cpu", compile=lambda graph, _: graph.forward)
        made.module(*inputs(2))
        assert made.module.compiled.graphs == 1


def test_compiling_again_for_known_shapes_is_refused():
    made = make_copy(tiny(), "int8", "auto", (), "cpu", compile=lambda graph, _: graph.forward)
    made.module(*inputs(3))
    torch._dynamo.reset()  # as if a guard had failed
    made.module(*inputs(3))
    with pytest.raises(PrecisionError, match="it was compiled 1 times again for shapes"):
        made.sync_weights(tiny())


def test_what_cannot_be_captured_is_an_error():
    class Breaks(nn.Module):
        def forward(self, x):
            return x * (2 if bool(x.sum() > 0) else 3)

    with pytest.raises(Exception, match="(?i)data-dependent|graph break|unsupported"):
        network = Breaks()
        compile_network(network, lambda graph, _: graph.forward, whole=True)
        network(torch.randn(3))


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "engine"), [("fp8", "auto"), ("int8", "auto"), ("int8", "torchao")])
def test_with_the_real_compiler(precision, engine):
    made, source = make_copy(tiny(), precision, engine, (), "cpu", compile=True), tiny()
    made.module(*inputs(3))
    made.sync_weights(disturbed(source))
    after = made.module(*inputs(3))
    with made.module.eager():
        assert relative(after, made.module(*inputs(3))) < 0.01
    assert made.module.compiled.graphs == 1


def test_a_hollow_copy_has_no_storage():
    names = ["qkv", "point"]
    hollow = plain_copy(tiny(), torch.float32, torch.device("cpu"), hollow=names)
    meta = {name for name, parameter in hollow.named_parameters() if parameter.is_meta}
    assert meta == {f"{name}.{kind}" for name, kind in itertools.product(names, ("weight", "bias"))}
    assert not lora_layers(hollow)
