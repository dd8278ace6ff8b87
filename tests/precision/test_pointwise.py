"""SANA's pointwise convolutions: half of its parameters, quantised and refreshed as the linear layers that they are."""

import pytest
import torch
from torch import nn

from diffrl.models.families import FAMILIES
from diffrl.models.families.sana import build_tiny_transformer
from diffrl.precision.building import Pointwise, as_linear
from diffrl.precision.copies import make_copy
from tests.precision.made import relative

EXCLUDE = FAMILIES["sana"].exclude


def sana():
    torch.manual_seed(0)
    return build_tiny_transformer().requires_grad_(False).eval()


def call(network, batch=3):
    generator = torch.Generator().manual_seed(1)
    return network(
        hidden_states=torch.randn(batch, 4, 6, 10, generator=generator),
        encoder_hidden_states=torch.randn(batch, 7, 32, generator=generator),
        timestep=torch.full((batch,), 500.0),
        return_dict=False,
    )[0].float()


def test_a_linear_layer_is_a_pointwise_convolution():
    """Against cuDNN's or oneDNN's own, channels last or not."""
    convolution = nn.Conv2d(5, 7, 1).requires_grad_(False)
    linear = nn.Linear(5, 7)
    linear.weight.data, linear.bias.data = convolution.weight.flatten(1), convolution.bias
    for x in (torch.randn(2, 5, 3, 11), torch.randn(2, 5, 3, 11).to(memory_format=torch.channels_last)):
        torch.testing.assert_close(Pointwise(linear)(x), convolution(x), rtol=1e-5, atol=1e-6)
    assert as_linear(convolution).weight.shape == (7, 5) and as_linear(nn.Conv2d(5, 7, 1, bias=False)).bias is None
    assert as_linear(nn.Conv2d(5, 7, 3)) is None and as_linear(linear) is None


@pytest.mark.parametrize(
    ("precision", "engine", "error"),
    [
        ("int8", "auto", 0.02),
        ("nvfp4", "emulated", 0.2),
    ],
)
@pytest.mark.long
def test_they_are_quantised_and_refreshed(precision, engine, error):
    source = sana()
    exact = call(source)
    made = make_copy(source, precision, engine, EXCLUDE, "cpu")
    made.check(source, lambda: call(made.module), batches=(1, 2))
    convolutions = [f"transformer_blocks.{i}.ff.conv_{kind}" for i in range(2) for kind in ("inverted", "point")]
    assert set(convolutions) <= set(made.report.quantised)
    assert 1e-4 < relative(call(made.module), exact) < error
    with torch.no_grad():
        for name in convolutions:
            source.get_submodule(name).weight.mul_(4.0)
    before = call(made.module)
    made.sync_weights(source)
    made.check(source)
    assert relative(call(made.module), call(source)) < error < relative(before, call(source))


def test_what_they_add_to_the_coverage():
    """Against the network's own counts: the convolutions' weights, and two operations a weight and pixel."""
    source = sana()
    reports = {}
    for name, exclude in (("without", (*EXCLUDE, "ff")), ("with", EXCLUDE)):
        made = make_copy(source, "int8", "auto", exclude, "cpu")
        made.check(source, lambda made=made: call(made.module))
        reports[name] = made.report
    weights = sum(m.weight.numel() for n, m in source.named_modules() if n.endswith(("conv_inverted", "conv_point")))
    total = sum(p.numel() for p in source.parameters())
    before, after = reports["without"], reports["with"]
    assert after.parameters_quantised - before.parameters_quantised == pytest.approx(weights / total)
    moved = 2 * weights * 3 * 6 * 10
    assert after.flops["quantised"] - before.flops["quantised"] == moved
    assert before.flops["convolution"] - after.flops["convolution"] == moved
    assert before.flops_quantised < 0.6 * after.flops_quantised


def test_convolutions_with_neighbours_stay():
    made = make_copy(sana(), "int8", "auto", EXCLUDE, "cpu")
    feedforward = made.module.inner.transformer_blocks[0].ff
    assert isinstance(feedforward.conv_depth, nn.Conv2d) and isinstance(feedforward.conv_point, Pointwise)
    assert isinstance(made.module.inner.patch_embed.proj, nn.Conv2d)  # 1 x 1 too, but excluded
    assert dict(made.report.kept)["patch_embed.proj"] == "excluded by patch_embed"
