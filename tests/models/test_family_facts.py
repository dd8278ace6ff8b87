"""What is written down of each family fits the networks of its pipelines."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from diffrl.models.families import FAMILIES
from diffrl.models.loading import load_adapter
from diffrl.models.lora import add_lora
from diffrl.models.targets import names_layer
from diffrl.precision.layers import matches
from tests.edits import encoded


@pytest.fixture
def load(random_pipelines):
    return lambda family: load_adapter(
        family, str(random_pipelines(family)), dtype="float32", device=torch.device("cpu")
    )


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_every_name_of_a_layer_is_one_of_the_networks(load, family):
    adapter = load(family.name)
    assert type(adapter.pipeline).__name__ in family.pipelines
    modules = dict(adapter.transformer.named_modules())
    linears = [name for name, module in modules.items() if isinstance(module, nn.Linear)]
    for target in family.lora_targets:
        assert any(names_layer(target, name) for name in linears), target
    for pattern in family.exclude:
        assert any(matches(pattern, name) for name in modules if name), pattern
    kept = [name for name in linears if any(matches(pattern, name) for pattern in family.exclude)]
    assert 0 < len(kept) < len(linears)
    assert not any(names_layer(target, name) for target in family.lora_targets for name in kept)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_weight_of_the_default_lora_gets_a_gradient(load, family):
    """Ranks that share gradients wait for each of them."""
    adapter = load(family)
    add_lora(adapter.transformer, 2, 4.0, FAMILIES[family].lora_targets, seed=0)
    latents = adapter.init_latents(lambda shape: torch.randn(1, *shape, generator=torch.Generator().manual_seed(1)))
    velocity = adapter.velocity(latents, torch.tensor([0.7]), encoded(adapter, ["a red circle"]), 3.0)
    velocity.square().sum().backward()
    assert not [name for name, p in adapter.transformer.named_parameters() if p.requires_grad and p.grad is None]


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_says_whether_some_weights_never_get_a_gradient(load, family):
    """Full fine-tuning on several ranks waits for every gradient, unless the family says that some never come."""
    adapter = load(family)
    adapter.transformer.requires_grad_(True)
    latents = adapter.init_latents(lambda shape: torch.randn(1, *shape, generator=torch.Generator().manual_seed(1)))
    velocity = adapter.velocity(latents, torch.tensor([0.7]), encoded(adapter, ["a red circle"]), 1.0)
    velocity.square().sum().backward()
    without = [name for name, weight in adapter.transformer.named_parameters() if weight.grad is None]
    assert bool(without) == FAMILIES[family].idle_weights, without


def test_facts_are_read_without_torch():
    """Configurations, schemas and the gallery ask for them; torch takes seconds to import."""
    heavy = "{'torch', 'diffusers', 'transformers', 'numpy'}"
    code = f"import sys, diffrl.config, diffrl.models.families; sys.exit(', '.join({heavy} & set(sys.modules)) or 0)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert found.returncode == 0, found.stderr


ROOT = Path(__file__).parents[2]
BY_HAND = ("diffrl", "reward_models", "scripts", "tests", "docs", "configs/src", "README.md", "CONTRIBUTING.md")
MADE = ("docs/configuration.md", "docs/notebook.md")


@pytest.mark.parametrize("family", ["hunyuan_video", "z_image", "flux2_klein"])
def test_few_files_know_a_familys_name(family):
    """What a family is follows from its own file: whoever adds one touches few others (docs/add-a-model.md)."""
    files = [
        path for name in BY_HAND for path in ((ROOT / name).rglob("*") if (ROOT / name).is_dir() else [ROOT / name])
    ]
    apart = {ROOT / name for name in MADE} | {Path(__file__), ROOT / f"tests/models/test_{family}.py"}
    texts = [path for path in files if path.suffix in (".py", ".md", ".yaml", ".js", ".html") and path not in apart]
    made_by_scripts = re.compile(r"<!-- \w+: begin -->.*?<!-- \w+: end -->", re.DOTALL)
    naming = [
        str(path.relative_to(ROOT))
        for path in texts
        if re.search(rf"\b{family}\b", made_by_scripts.sub("", path.read_text(encoding="utf-8")))
    ]
    assert len(naming) <= 8, naming
