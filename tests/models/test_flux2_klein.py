"""What FLUX.2 klein does unlike the other families; parity with the stock pipeline is in test_families.py."""

import pytest
import torch

from diffrl.errors import ConfigError
from diffrl.models.distilled import refuse_distilled
from diffrl.models.families import FAMILIES
from diffrl.models.loading import load_adapter
from tests.models.unlike import Unlike

UNLIKE = Unlike(stock_latents=lambda latents: latents.mT.unflatten(2, (4, 4)))
"""The stock call packs them itself."""


def test_packing_is_a_permutation_and_the_decoders_normalisation_is_by_channel_and_place(random_pipelines):
    adapter = load_adapter("flux2_klein", str(random_pipelines("flux2_klein")), dtype="float32", height=24, width=40)
    adapter.pipeline.vae.bn.running_mean.copy_(torch.arange(16.0))
    adapter.pipeline.vae.bn.running_var.fill_(4.0 - adapter.pipeline.vae.config.batch_norm_eps)
    numbers = torch.arange(2.0 * 16 * 3 * 5)
    packed = adapter.init_latents(lambda shape: numbers.view(2, *shape))
    assert packed.shape == (2, 15, 16) and packed.flatten().sort().values.equal(numbers)
    unpacked = adapter.unpack(packed)
    assert unpacked.shape == (2, 4, 6, 10)
    for channel, row, column in ((0, 0, 0), (1, 3, 8), (3, 5, 9), (2, 4, 1)):
        patch, token = 4 * channel + 2 * (row % 2) + column % 2, 5 * (row // 2) + column // 2
        expected = 2.0 * packed[:, token, patch] + patch
        torch.testing.assert_close(unpacked[:, channel, row, column], expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["FLUX.2-klein-4B", "FLUX.2-klein-9B"])
def test_the_distilled_ones_are_known_by_their_names(name):
    family = FAMILIES["flux2_klein"]
    with pytest.raises(ConfigError, match="whose name says"):
        refuse_distilled(family, f"black-forest-labs/{name}", allowed=False)
    refuse_distilled(family, f"black-forest-labs/{name.replace('klein', 'klein-base')}", allowed=False)
