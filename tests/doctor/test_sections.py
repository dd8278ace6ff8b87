"""The sections on a CPU: all rows that it can pass do, and a fault put into what they look at makes them fail."""

import pytest
import torch

from diffrl.doctor import kernels, life, models, parity, precisions, tiny
from diffrl.doctor.iterations import Size, real_iteration
from diffrl.doctor.rows import Budget, answer
from diffrl.models.families import FAMILIES
from diffrl.precision.formats import PRECISIONS

CPU = torch.device("cpu")


def outcomes(section, wanted=""):
    budget = Budget(600)
    return {row.name: answer("any", row, budget) for row in section.rows(CPU, budget) if wanted in row.name}


def failed(found):
    return {name: outcome.measured for name, outcome in found.items() if outcome.status == "fail"}


@pytest.fixture
def two_families(monkeypatch):
    monkeypatch.setattr(parity, "FAMILIES", ("sd3", "flux"))


@pytest.mark.parametrize(
    ("name", "size"), [("float32", 1e-3), ("bfloat16", 1.0)], ids=["as TensorFloat-32", "a lost bias"]
)
def test_a_device_that_computes_otherwise_is_found(two_families, monkeypatch, name, size):
    """The second network that is opened stands for the device; one of its layers is off by `size`."""
    opened, real = [], parity.open_step

    def off(family, path, device, dtype, **placement):
        step = real(family, path, device, dtype, **placement)
        opened.append(step)
        if len(opened) == (2 if name == "float32" else 3):
            layer = next(one for one in step.adapter.transformer.modules() if isinstance(one, torch.nn.Linear))
            layer.weight.data.mul_(1 + size)
        return step

    monkeypatch.setattr(parity, "open_step", off)
    found = outcomes(parity, f"sd3, {name}")
    assert [outcome.status for outcome in found.values()] == ["fail"]


def test_every_attention_backend_base_and_optimiser_is_a_row():
    found = {row.name for row in kernels.rows(CPU, Budget(60))}
    backends = kernels.choices(kernels.ModelSettings, "attention")
    assert {f"attention {backend}, flux" for backend in backends} <= found and "_native_math" in backends
    assert {"base in nf4, sd3", "base in int8, sd3", "optimiser adamw", "optimiser adamw_8bit"} <= found


def test_an_optimiser_that_forgets_its_moments_is_found(monkeypatch):
    assert outcomes(kernels, "optimiser adamw")["optimiser adamw"].status == "pass"
    monkeypatch.setattr(kernels, "restore_optimizer", lambda *_: None)
    assert outcomes(kernels, "optimiser adamw")["optimiser adamw"].status == "fail"


@pytest.mark.long
def test_activations_in_float32_on_a_quantised_base_are_found(monkeypatch):
    pytest.importorskip("bitsandbytes")
    assert outcomes(kernels, "base in nf4")["base in nf4, sd3"].status == "pass"
    real = kernels.open_step

    def in_float32(family, path, device, dtype, **placement):
        return real(family, path, device, "float32" if placement else dtype, **placement)

    monkeypatch.setattr(kernels, "open_step", in_float32)
    assert outcomes(kernels, "base in nf4")["base in nf4, sd3"].status == "fail"


@pytest.mark.slow
def test_every_row_of_all_families_that_a_cpu_can_pass_does():
    found = outcomes(parity)
    assert len(found) == 2 * len(FAMILIES) and {outcome.status for outcome in found.values()} == {"pass"}
    assert not failed(outcomes(kernels))


@pytest.mark.long
def test_every_row_that_a_cpu_can_pass_does(two_families, monkeypatch):
    monkeypatch.setattr(kernels, "FAMILIES", ("sd3",))
    found = outcomes(parity)
    assert list(found) == ["sd3, float32", "sd3, bfloat16", "flux, float32", "flux, bfloat16"]
    assert {outcome.status for outcome in found.values()} == {"pass"}, failed(found)
    for section in (kernels, precisions):
        found = outcomes(section)
        assert not failed(found)
    assert set(found) == {f"{one}, {engine}" for one, known in PRECISIONS.items() for engine in known.runners}


@pytest.mark.slow
def test_a_small_run_lives():
    found = outcomes(life)
    assert not failed(found) and len(found) == 4


@pytest.mark.slow
def test_a_pipeline_with_random_weights_is_written_and_trained(tmp_path):
    """Of SD3.5 Medium all but the number of layers is as published; bounds on memory are for real sizes."""
    changed = {"num_layers": 2, "dual_attention_layers": [0], "pos_embed_max_size": 384}
    small = ("rollout.steps=2", "rollout.tree={roots: 1, branches: 2, splits: [0], correlation: 4.0}",
             "model.height=64", "model.width=64", "prompts.per_iteration=1", "rollout.micro_batch=2",
             "train.micro_batch=1", "rollout.decode_batch=1")  # fmt: skip
    found = real_iteration(Size(models.MEDIUM.path, "sd3/diffrl", small, changed=changed), tmp_path, CPU)
    assert found.facts["on_policy_error"] < 1e-3 and found.facts["evaluations"]["update"] > 0
    assert found.facts["peak_gib"] > 0 and found.facts["seconds"]["update"] > 0


def test_tiny_steps_exist_for_every_family(tmp_path):
    assert set(FAMILIES) >= {"sd3", "flux", "sana", "wan"}
    step = tiny.open_step("sana", tiny.write_tiny("sana", tmp_path / "sana"), CPU, "float32")
    gradient = step.gradient()
    assert all(bool((one != 0).any()) for one in gradient) and len(gradient) == len(step.trained)
