"""How many bytes a rollout holds, counted: what `records.Rollout` stores, before anything is drawn."""

from __future__ import annotations

from dataclasses import dataclass

FLOAT32, INDEX = 4, 8


@dataclass(frozen=True)
class RolloutSize:
    """What a rollout holds until its update is done; of one prompt or of many."""

    samples: int  # finished pictures with their latents
    nodes: int  # of the forest
    origins: int  # recorded steps' beginnings, siblings' once
    edges: int  # recorded steps
    stored: int  # latents of the recorded steps, each once
    predicted: int  # latents of pictures predicted at nodes

    def times(self, count: int, processes: int) -> RolloutSize:
        """Return the size of one of some processes that share `count` as large rollouts."""
        return RolloutSize(*(value * count // processes for value in vars(self).values()))

    def size(self, elements: int, stored: int = FLOAT32) -> int:
        """Return bytes on the device: latents, recorded steps' in `stored` bytes a number; indices, levels, densities.

        Args:
            elements: numbers in one sample's latents.
            stored: bytes of a number of a recorded step.
        """
        latents = (self.stored * stored + (self.samples + self.predicted) * FLOAT32) * elements
        columns = self.nodes * 5 * INDEX + self.samples * INDEX
        columns += self.origins * (3 * INDEX + 2 * FLOAT32) + self.edges * (3 * INDEX + FLOAT32)
        return latents + columns

    def pictures(self, pixels: int) -> int:
        """Return bytes of the decoded pictures, uint8, which lie in the computer's memory whatever the device is."""
        return self.samples * 3 * pixels
