"""What networks compute in, by CUDA's rules of autocast: with a LoRA nothing is autocast, else no kernel is misled."""

from functools import cache

import pytest
import torch
from torch.overrides import TorchFunctionMode

from diffrl.cost.cuda_rules import cuda_rules
from diffrl.models.families import FAMILIES
from diffrl.models.loading import load_adapter
from diffrl.models.placement import Placement
from diffrl.training.policy import Policy
from tests.edits import encoded
from tests.tiers import daily

PROMPTS = ["a red circle", "two blue squares"]
LORA = {"rank": 4, "alpha": 8}


@pytest.fixture(scope="module")
def policy_of(random_pipelines):
    """A family's policy in bfloat16: with a LoRA that is not zero, or with all weights trained."""

    @cache
    def made(family, lora, **placement):
        adapter = load_adapter(
            family, str(random_pipelines(family)), dtype="bfloat16", placement=Placement(**placement)
        )
        targets = {"targets": FAMILIES[family].lora_targets}
        policy = Policy(adapter, LORA | targets if lora else None, seed=0, keep_reference=True)
        generator = torch.Generator().manual_seed(1)
        for name, parameter in policy.parameters.items():
            if "lora_B" in name:
                parameter.data.normal_(std=0.1, generator=generator)
        return policy

    return made


def velocity(policy, scale=3.0, conditioning=None):
    adapter = policy.adapter
    latents = adapter.init_latents(lambda shape: torch.randn(2, *shape, generator=torch.Generator().manual_seed(1)))
    return adapter.velocity(latents, torch.tensor([0.9, 0.3]), conditioning or encoded(adapter, PROMPTS), scale)


class Attended(TorchFunctionMode):
    """Within, the dtypes of queries, keys and values that reach PyTorch's attention are kept, before any autocast."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is torch.nn.functional.scaled_dot_product_attention:
            given = (*args, *(kwargs or {}).values())[:3]
            self.seen.append(tuple(tensor.dtype for tensor in given))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("family", FAMILIES)
def test_a_lora_gives_the_same_by_the_rules_of_every_device(policy_of, family):
    policy = policy_of(family, True)
    with torch.no_grad():
        own = velocity(policy)
        with cuda_rules():
            cudas = velocity(policy)
        with policy.reference():
            assert (velocity(policy) - own).abs().max() > 0
    assert torch.equal(own, cudas)
    assert {parameter.dtype for parameter in policy.parameters.values()} == {torch.float32}


TUNED = [(family, lora) for family in FAMILIES for lora in (True, False)]
LORAS = [(family, True) for family in FAMILIES]


@pytest.mark.parametrize(
    ("family", "lora"), daily(TUNED, [*LORAS, ("sd3", False)], set(TUNED) - {*LORAS, ("sd3", False), ("flux", False)})
)
def test_queries_keys_and_values_have_one_dtype(policy_of, family, lora):
    """Backends such as flash take nothing else; PyTorch's own is saved by a rule of autocast."""
    policy = policy_of(family, lora)
    conditioning = encoded(policy.adapter, PROMPTS)  # encoders have rules of their own
    with cuda_rules(), Attended() as attended:
        velocity(policy, conditioning=conditioning).square().mean().backward()
        with torch.no_grad(), policy.reference():
            velocity(policy, conditioning=conditioning)
    assert set(attended.seen) == {(torch.bfloat16,) * 3}
    gradients = [parameter.grad for parameter in policy.parameters.values() if parameter.grad is not None]
    assert gradients and all(gradient.dtype == torch.float32 for gradient in gradients)


BASES = [("sd3", "int8"), *((family, "nf4") for family in FAMILIES)]
DAILY = [("sd3", "int8"), ("flux", "nf4")]
OF_KINDS = [("wan_i2v", "nf4"), ("hunyuan_video", "nf4")]
"""For CI: clips, and encodings with masks."""


@pytest.mark.parametrize(("family", "precision"), daily(BASES, DAILY, set(BASES) - {*DAILY, *OF_KINDS}))
def test_a_quantised_base_is_given_the_models_dtype(policy_of, family, precision):
    bitsandbytes = pytest.importorskip("bitsandbytes")
    policy = policy_of(family, True, base_precision=precision)
    seen = []
    layers = [
        m for m in policy.inner.modules() if type(m) in (bitsandbytes.nn.Linear4bit, bitsandbytes.nn.Linear8bitLt)
    ]
    hooks = [
        m.register_forward_hook(lambda _, given, found: seen.append((given[0].dtype, found.dtype))) for m in layers
    ]
    with cuda_rules(), torch.no_grad():
        velocity(policy, 1.0)
    for hook in hooks:
        hook.remove()
    assert len(seen) >= len(layers) > 4 and set(seen) == {(torch.bfloat16,) * 2}
