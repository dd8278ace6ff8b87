"""What Z-Image does unlike the other families; parity with the stock pipeline is in test_families.py."""

from functools import partial

import pytest
import torch

from diffrl.errors import ConfigError
from diffrl.models.loading import load_adapter
from tests.models.unlike import Unlike

UNLIKE = Unlike(output=torch.stack, waits={"read": (8, 8, 16)})
"""Its network takes each text at its length, which the host asks for: one wait, but each number is counted."""

LONG = "two blue squares above a green triangle and a small circle left of " * 2
PROMPTS = ["a red circle", LONG]


@pytest.fixture
def load(random_pipelines):
    return partial(load_adapter, "z_image", str(random_pipelines("z_image")), dtype="float32")


def test_texts_of_different_lengths_get_the_stock_encoding_and_do_not_see_each_other(load):
    """The second text needs twice the places of the first, so the batch is masked; alone neither is."""
    adapter = load(max_sequence_length=60)
    own, empty = adapter.pipeline.encode_prompt(list(PROMPTS), max_sequence_length=60)
    conditioning = adapter.encode_prompts(PROMPTS)
    assert len(own[0]) < 32 < len(own[1]) < 60
    for embeds, mask, texts in (
        (conditioning["prompt_embeds"], conditioning["mask"], own),
        (conditioning["negative_prompt_embeds"], conditioning["negative_mask"], empty),
    ):
        assert mask.sum(1).tolist() == [len(text) for text in texts] and not embeds[~mask].any()
        torch.testing.assert_close(embeds[mask], torch.cat(list(texts)), rtol=1e-5, atol=1e-6)
    latents = adapter.init_latents(lambda shape: torch.randn(2, *shape, generator=torch.Generator().manual_seed(1)))
    sigma = torch.tensor([0.8, 0.3])
    with torch.no_grad():
        together = adapter.velocity(latents, sigma, conditioning, 5.0)
        for i in range(2):
            one = slice(i, i + 1)
            alone = adapter.velocity(latents[one], sigma[one], adapter.encode_prompts(PROMPTS[one]), 5.0)
            torch.testing.assert_close(alone, together[one], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("options", "rule"),
    [
        ({"max_sequence_length": 97}, "model.max_sequence_length must be <= 96"),
        ({"height": 136}, "model.height and model.width must be <= 128 and 128"),
    ],
)
def test_positions_that_the_network_does_not_have_are_refused(load, options, rule):
    with pytest.raises(ConfigError, match=rule):
        load(**options)
    allowed = {name: value - value % 32 for name, value in options.items()}
    adapter = load(**{"max_sequence_length": 96, **allowed})
    latents = adapter.init_latents(lambda shape: torch.zeros(1, *shape))
    with torch.no_grad():
        found = adapter.velocity(latents, torch.tensor([0.5]), adapter.encode_prompts([LONG * 4]), 1.0)
    assert found.isfinite().all()
