"""Copies of a tiny SD3: weights arrive in place, errors are those of the precision, nothing leaks either way."""

import copy
import json
from dataclasses import asdict

import pytest
import torch
from torch import nn

from diffrl.errors import ConfigError
from diffrl.models.families import FAMILIES
from diffrl.models.lora import add_lora, lora_disabled
from diffrl.precision.copies import make_copy
from diffrl.precision.report import PrecisionError
from tests.precision.made import relative

KINDS = [
    ("bfloat16", "auto"),
    ("int8", "auto"),
    ("fp8", "auto"),
    ("mxfp8", "emulated"),
    ("nvfp4", "emulated"),
]
every_kind = pytest.mark.parametrize(("precision", "engine"), KINDS, ids=[f"{p}-{e}" for p, e in KINDS])


def storages(module):
    tensors = [*module.named_parameters(), *module.named_buffers()]
    return {name: (tensor.data_ptr(), tensor.dtype, tensor.shape) for name, tensor in tensors}


def disturb(transformer, amount, seed=5):
    """Change every trainable weight, as an update would."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in (p for p in transformer.parameters() if p.requires_grad):
            parameter.add_(amount * torch.randn(parameter.shape, generator=generator))


FULL = ["bfloat16-auto", "int8-auto", "nvfp4-emulated"]
"""Without LoRA the weights come to a layer as they are: one kind for each way in which a layer takes them."""


@pytest.mark.parametrize(
    ("precision", "engine", "lora"),
    [
        pytest.param(*kind, lora, id=f"{kind[0]}-{kind[1]}-{'lora' if lora else 'full'}")
        for kind in KINDS
        for lora in (False, True)
        if lora or "-".join(kind) in FULL
    ],
)
def test_a_push_arrives_in_place(adapter, velocity, sd3_copy, precision, engine, lora):
    if lora:
        add_lora(adapter.transformer, 3, 7.0, ["to_q", "to_out.0", "proj_out", "norm1.linear"], seed=1)
    else:
        adapter.transformer.requires_grad_(True)
    pushed = sd3_copy(adapter.transformer, precision, engine)
    where = storages(pushed.module)
    with pushed.in_place_of(adapter):
        before = velocity(adapter)
    disturb(adapter.transformer, 0.1 if lora else 0.02)
    pushed.sync_weights(adapter.transformer)
    pushed.check(adapter.transformer)
    assert storages(pushed.module) == where
    fresh = sd3_copy(adapter.transformer, precision, engine)
    with pushed.in_place_of(adapter):
        after = velocity(adapter)
    with fresh.in_place_of(adapter):
        assert torch.equal(velocity(adapter), after)
    live = velocity(adapter)
    assert relative(after, live) < 0.2 < relative(before, live)


def test_a_merged_lora_is_the_lora(adapter, velocity):
    """On a copy that rounds almost nothing, so that the update is told from rounding."""
    add_lora(adapter.transformer, 3, 7.0, ["to_q", "ff.net.2", "proj_out"], seed=1)
    disturb(adapter.transformer, 0.1)
    live = velocity(adapter)
    kept = ("pos_embed", "time_text_embed", "context_embedder", "norm_out", "proj_out", "norm1", "norm1_context")
    almost_plain = make_copy(adapter.transformer, "int8", "auto", (*kept, "attn", "ff.net.0", "ff_context"), "cpu")
    assert almost_plain.report.quantised == tuple(f"transformer_blocks.{i}.ff.net.2" for i in range(2))
    with almost_plain.in_place_of(adapter):
        assert relative(velocity(adapter), live) < 0.01
    with lora_disabled(adapter.transformer):
        base = velocity(adapter)
        almost_plain.sync_weights(adapter.transformer)
        with almost_plain.in_place_of(adapter):
            off = velocity(adapter)
    assert relative(off, base) < 0.01 < 0.1 < relative(base, live)


@every_kind
@pytest.mark.long
def test_making_and_pushing_leave_the_source_alone(adapter, velocity, sd3_copy, precision, engine):
    add_lora(adapter.transformer, 3, 7.0, ["to_q"], seed=1)
    disturb(adapter.transformer, 0.1)
    calls = []
    adapter.transformer.register_forward_pre_hook(lambda *_: calls.append(1))
    live, where = velocity(adapter), storages(adapter.transformer)
    sd3_copy(adapter.transformer, precision, engine).sync_weights(adapter.transformer)
    assert storages(adapter.transformer) == where and len(calls) == 1
    assert torch.equal(velocity(adapter), live)
    assert sum(p.requires_grad for p in adapter.transformer.parameters()) == 2 * 2  # of two blocks


@every_kind
def test_a_copy_is_frozen_and_owns_its_weights(adapter, sd3_copy, precision, engine):
    adapter.transformer.requires_grad_(True).train()
    made = sd3_copy(adapter.transformer, precision, engine)
    assert not any(p.requires_grad for p in made.module.parameters())
    assert not any(module.training for module in made.module.modules())
    live = {pointer for pointer, *_ in storages(adapter.transformer).values()}
    assert not live & {pointer for pointer, *_ in storages(made.module).values()}
    assert made.module.config is made.module.inner.config


@pytest.mark.long
def test_each_precision_errs_as_much_as_its_bits(adapter, velocity, read_copy):
    exact = velocity(adapter)
    errors = {}
    for precision, engine in (*KINDS, ("int8", "emulated"), ("fp8", "emulated")):
        with read_copy(precision, engine).in_place_of(adapter):
            errors[precision, engine] = relative(velocity(adapter), exact)
    assert 5e-4 < errors["bfloat16", "auto"] < 0.02
    assert 5e-4 < errors["int8", "auto"] < 0.03
    assert max(errors["fp8", "emulated"], errors["bfloat16", "auto"]) * 2 < errors["nvfp4", "emulated"]
    assert 0.02 < errors["nvfp4", "emulated"] < 0.3
    assert errors["int8", "auto"] == pytest.approx(errors["int8", "emulated"], rel=0.05)
    assert errors["fp8", "auto"] == pytest.approx(errors["fp8", "emulated"], rel=0.05)
    assert errors["int8", "auto"] < errors["fp8", "auto"] < errors["nvfp4", "emulated"]


def test_bfloat16_is_the_stock_cast_and_spares_the_timestep(adapter, velocity, read_copy):
    with read_copy("bfloat16", "auto").in_place_of(adapter):
        result = velocity(adapter)
    stock = nn.Module.to(copy.deepcopy(adapter.transformer), torch.bfloat16)

    class Stock(nn.Module):
        def forward(self, hidden_states, timestep, encoder_hidden_states, pooled_projections, return_dict):
            half = [t.bfloat16() for t in (hidden_states, encoder_hidden_states, pooled_projections)]
            return stock(half[0], half[1], half[2], timestep=timestep, return_dict=return_dict)

    adapter.transformer = Stock()
    adapter.transformer.anchor = nn.Parameter(torch.zeros(1))
    assert torch.equal(velocity(adapter), result)


@every_kind
@pytest.mark.long
def test_the_adapters_autocast_does_not_reach_the_copy(loaded, velocity, sd3_copy, precision, engine):
    adapter = loaded("bfloat16")
    made = sd3_copy(adapter.transformer, precision, engine)

    def forward():
        with made.in_place_of(adapter):
            assert velocity(adapter).dtype == torch.float32

    made.check(adapter.transformer, forward)


@every_kind
def test_a_sample_does_not_depend_on_its_batch(adapter, velocity, read_copy, precision, engine):
    with read_copy(precision, engine).in_place_of(adapter):
        together = velocity(adapter)
        alone = torch.cat([velocity(adapter, slice(row, row + 1)) for row in range(3)])
    rounding = {"bfloat16": 0.02, "fp8": 5e-3}.get(precision, 1e-3)  # an fp8 code that turns the other way is 6 % off
    assert relative(alone, together) < rounding


@every_kind
def test_the_report_is_complete(adapter, read_copy, precision, engine):
    linears = {n: m for n, m in adapter.transformer.named_modules() if isinstance(m, nn.Linear)}
    report = read_copy(precision, engine).report
    kept = {name for name, _ in report.kept}
    assert set(report.quantised) | kept == set(linears)
    assert not set(report.quantised) & kept and len(report.kept) == len(kept)
    real = {"bfloat16": "bfloat16", "int8": "int8", "fp8": "float8_e4m3fn"}
    expected = real[precision] if engine == "auto" else "float32"
    assert (report.precision, report.compute_dtype) == (precision, expected)
    assert report.engine == ("torch" if engine == "auto" else "emulated")
    total = sum(p.numel() for p in adapter.transformer.parameters())
    weights = sum(linears[name].weight.numel() for name in report.quantised)
    assert report.parameters_quantised == pytest.approx(weights / total)
    assert json.loads(json.dumps(asdict(report)))["precision"] == precision
    if precision == "bfloat16":
        assert not kept and report.weights_quantised == 1.0
    else:
        modulation = [f"transformer_blocks.{i}.norm1{side}.linear" for i in range(2) for side in ("", "_context")]
        embedders = [name for name in linears if name.startswith("time_text_embed.")]
        assert kept == {*modulation, *embedders, "context_embedder", "norm_out.linear", "proj_out"}
        assert dict(report.kept)["norm_out.linear"] == "excluded by norm_out"


def test_it_lends_itself_and_gives_back(adapter, read_copy):
    live, made = adapter.transformer, read_copy("nvfp4", "emulated")
    with made.in_place_of(adapter):
        assert adapter.transformer is made.module
    assert adapter.transformer is live
    with pytest.raises(KeyError), made.in_place_of(adapter):
        raise KeyError
    assert adapter.transformer is live


def test_a_source_with_other_weights_is_refused_before_anything_is_written(adapter, sd3_copy):
    made = sd3_copy(adapter.transformer, "int8", "auto")
    before = {name: tensor.clone() for name, tensor in made.module.named_parameters()}
    other = copy.deepcopy(adapter.transformer)
    other.transformer_blocks = other.transformer_blocks[:1]
    disturb(other.requires_grad_(True), 0.1)
    with pytest.raises(ValueError, match=r"must have the copy's weights.*transformer_blocks.1"):
        made.sync_weights(other)
    assert all(torch.equal(tensor, before[name]) for name, tensor in made.module.named_parameters())


def test_a_lora_that_cannot_be_merged_is_refused(adapter, sd3_copy):
    from peft import LoraConfig

    config = LoraConfig(r=3, target_modules=["to_q"], use_dora=True)
    adapter.transformer.add_adapter(config, adapter_name="default")
    with pytest.raises(PrecisionError, match=r"attn.to_q has a LoRA that is not"):
        sd3_copy(adapter.transformer, "int8", "auto")


def test_a_pattern_that_matches_nothing_is_named(adapter):
    exclude = (*FAMILIES["sd3"].exclude, "norm_outer", "to_x")
    with pytest.raises(
        ConfigError, match=r"rollout.explore.exclude must .* Got norm_outer, to_x, which match none.*proj"
    ):
        make_copy(adapter.transformer, "nvfp4", "emulated", exclude, "cpu")
