"""A quantised base under a LoRA: which layers, how near, and that rollout and update see the same weights."""

import pytest
import torch

from diffrl.models.families import FAMILIES
from diffrl.models.loading import load_adapter
from diffrl.models.placement import Placement
from tests.training.harness import make_run, settings

pytest.importorskip("bitsandbytes")
PROMPTS = ["a red circle", "two blue squares"]


def load(folder, family, precision):
    return load_adapter(family, str(folder), dtype="float32", placement=Placement(base_precision=precision))


def velocities(adapter):
    latents = adapter.init_latents(lambda shape: torch.randn(2, *shape, generator=torch.Generator().manual_seed(1)))
    with torch.no_grad():
        return adapter.velocity(latents, torch.full((2,), 0.6), adapter.encode_prompts(PROMPTS), 1.0)


@pytest.mark.parametrize(
    ("family", "precision", "largest", "bits"),
    [("sd3", "nf4", 0.2, 4), ("flux", "int8", 0.03, 8), ("sana", "nf4", 0.2, 4), ("wan", "int8", 0.03, 8)],
)
@pytest.mark.long
def test_a_quantised_base_is_near_the_whole_one_and_smaller(random_pipelines, family, precision, largest, bits):
    folder = random_pipelines(family)
    plain, adapter = load(folder, family, None), load(folder, family, precision)
    expected = velocities(plain)
    error = (velocities(adapter) - expected).norm() / expected.norm()
    assert 1e-5 < error < largest
    kinds = {name: type(module).__module__.split(".")[0] for name, module in adapter.transformer.named_modules()}
    quantised = {name for name, kind in kinds.items() if kind == "bitsandbytes"}
    linears = {n for n, m in plain.transformer.named_modules() if isinstance(m, torch.nn.Linear)}
    assert quantised and quantised < linears
    assert not any(part in FAMILIES[family].exclude for name in quantised for part in name.split("."))
    weights = dict(adapter.transformer.named_parameters())
    for name in quantised:
        stored, whole = weights[f"{name}.weight"], dict(plain.transformer.named_parameters())[f"{name}.weight"]
        assert stored.numel() * stored.element_size() * 8 == bits * whole.numel()


@pytest.mark.long
@pytest.mark.parametrize("precision", ["nf4", "int8"])
def test_a_lora_on_it_trains_on_policy(random_sd3, tmp_path, precision):
    data = settings(
        random_sd3,
        tmp_path,
        model={"lora": {"rank": 3, "alpha": 6}, "base_precision": precision},
        rollout={"micro_batch": 3},
        train={"micro_batch": 2, "learning_rate": 1.0e-2},
    )
    trainer, run = make_run(data)
    trainer.iterate()
    metrics = trainer.iterate().metrics
    run.journal.close()
    assert trainer.updater.on_policy_error < 1e-5 and metrics["update/grad_norm"] > 0
    assert all(p.dtype == torch.float32 for p in trainer.session.policy.parameters.values())
