"""Held-out evaluations of random images through a run's own code, at sizes where small copies are not exact."""

import torch

from diffrl.distributed.ranks import Ranks
from diffrl.run.held_out import pictured, totals_at_first
from diffrl.tracking.store import SampleStore, StoredSample

SAMPLES, SPREAD = 12, 4
LAST = [0.5, 0.9, 0.1, 0.5, 0.9, 0.1] + [0.5] * (SAMPLES - 6)
"""Totals of which those outside the even spread, 0, 3, 6 and 9, win twice and lose twice against 0.5."""


def image(place, size):
    return torch.randint(0, 256, (3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(place))


def evaluate(run, iteration, totals, size=128):
    """Keep an evaluation as a run does; the images of a place are the same in each."""
    images = torch.stack([image(place, size) for place in range(len(totals))])
    own = [StoredSample("eval", iteration, g, 0, 7, f"prompt {g}", total=total) for g, total in enumerate(totals)]
    with SampleStore(run) as store:
        before = totals_at_first(store, iteration)
        store.write(pictured(Ranks(), own, images, SPREAD, before, 8.0))
