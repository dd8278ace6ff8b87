"""Patterns fit whole parts of names."""

import pytest
from torch import nn

from diffrl.errors import ConfigError
from diffrl.precision.layers import choose_layers, matches


@pytest.mark.parametrize(
    ("pattern", "name", "expected"),
    [
        ("norm_out", "norm_out.linear", True),
        ("norm_out", "norm_out", True),
        ("norm_out", "norm_output", False),
        ("norm_out", "norm_output.linear", False),
        ("norm_out", "my_norm_out", False),
        ("linear", "norm_out.linear", True),
        ("attn.to_q", "blocks.0.attn.to_q", True),
        ("attn.to_q", "blocks.0.attn.inner.to_q", False),
        ("attn.to_q", "blocks.0.attn", False),
        ("attn.to_q", "to_q.attn", False),
        ("attn.to_*", "blocks.0.attn.to_out.0", True),
        ("blocks.*.attn", "blocks.11.attn.to_q", True),
        ("blocks.*.attn", "blocks.attn", False),
        ("blocks.[01]", "blocks.1.ff", True),
        ("blocks.1", "blocks.11.ff", False),
        ("blo*", "blocks.0.ff", True),
        ("blocks*ff", "blocks.0.ff", False),
    ],
)
def test_matching(pattern, name, expected):
    assert matches(pattern, name) is expected


def network():
    return nn.ModuleDict(
        {"first": nn.Conv2d(1, 1, 3), "body": nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 7))}
    )


def test_layers_are_split_with_a_reason():
    chosen, kept = choose_layers(network(), ["first"], lambda layer: "odd" if layer.in_features == 3 else None)
    assert list(chosen) == ["body.2"] and kept == {"body.0": "odd"}


def test_something_must_be_left():
    with pytest.raises(ConfigError, match="must leave a linear layer to quantise. Got body: all 2"):
        choose_layers(network(), ["body"], lambda _: None)


def test_pointwise_convolutions_are_linear_layers():
    module = nn.ModuleDict(
        {
            "pointwise": nn.Conv2d(3, 5, 1),
            "neighbours": nn.Conv2d(3, 5, 3, padding=1),
            "strided": nn.Conv2d(3, 5, 1, stride=2),
            "depthwise": nn.Conv2d(3, 3, 1, groups=3),
            "padded": nn.Conv2d(3, 5, 1, padding=1),
            "linear": nn.Linear(7, 2),
        }
    )
    chosen, kept = choose_layers(module, [], lambda layer: None if layer.in_features == 3 else "odd")
    assert {name: (m.in_features, m.out_features) for name, m in chosen.items()} == {"pointwise": (3, 5)}
    assert kept == {"linear": "odd"}
