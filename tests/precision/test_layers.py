"""Patterns fit whole parts of names."""

import re
from dataclasses import replace

import pytest
import torch
from torch import nn

from diffrl.errors import ConfigError
from diffrl.models.families import FAMILIES
from diffrl.models.published import published_pipeline
from diffrl.models.tiny import build_pipeline
from diffrl.precision.building import choose_layers, linear_layers
from diffrl.precision.layers import matches


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


TINY_SOL_RL = {
    "sd3": r"transformer_blocks\.\d+\.ff\.net\.(0\.proj|2)",
    "flux": r"(single_)?transformer_blocks\..*|proj_out",
    "sana": r"transformer_blocks\.\d+\.(attn2\.to_[kv]|ff\.conv_(inverted|point))",
}
"""The layers that Sol-RL's code puts into NVFP4, by their names in diffusers."""


@pytest.mark.parametrize("family", TINY_SOL_RL)
def test_sol_rl_chooses_exactly_the_layers_of_its_code(family):
    transformer = build_pipeline(family, ["a", "red", "circle"], seed=0).transformer
    chosen, kept = choose_layers(transformer, FAMILIES[family].sol_rl_exclude, lambda _: None)
    names = [name for name in linear_layers(transformer) if re.fullmatch(TINY_SOL_RL[family], name)]
    assert list(chosen) == names and names and kept


@pytest.mark.parametrize(
    ("family", "path", "skipped", "width"),
    [
        (
            "sd3",
            "stabilityai/stable-diffusion-3.5-large",
            ("pos_embed", "context_embedder", "time_text_embed", "norm_out", "norm1", "ff_context"),
            2432,
        ),
        (
            "flux",
            "black-forest-labs/FLUX.1-dev",
            ("x_embedder", "context_embedder", "time_text_embed", "norm_out"),
            1000,
        ),
    ],
)
def test_names_alone_choose_what_its_names_and_width_choose(family, path, skipped, width):
    """Its rule at the published sizes: no skipped word in the name, and a side above the width."""
    network = published_pipeline(path).components["transformer"]
    few = {name: 2 for name in ("num_layers", "num_single_layers") if name in network.config}
    with torch.device("meta"):
        transformer = replace(network, config={**network.config, **few}).build()
    chosen, _ = choose_layers(transformer, FAMILIES[family].sol_rl_exclude, lambda _: None)
    linears = {n: m for n, m in transformer.named_modules() if isinstance(m, nn.Linear)}
    assert set(chosen) == {
        name
        for name, layer in linears.items()
        if not any(word in name for word in skipped) and max(layer.in_features, layer.out_features) > width
    }
