"""Where a piece of noise belongs: noise is addressed, not drawn.

An address names one latent of one tree. Its noise is a pure function of it (`noise.noise_at`), so any path can be
regenerated alone, in another precision, on another rank or after a resume.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Address(NamedTuple):
    """The place of one noise tensor.

    Args:
        stream: what the noise is for, such as "train", "eval" or "generate"; keeps their noises apart.
        seed: the run's seed.
        iteration: the training iteration, from 0.
        group: the group id: one slot of the iteration's global batch.
        root: index of the initial noise within the group.
        path: child indices from the root; () is the initial noise, (0, 1) the noise of the step into the second child
            of the root's first child. On a chain every index is 0.
    """

    stream: str
    seed: int
    iteration: int
    group: int
    root: int
    path: tuple[int, ...] = ()

    def child(self, index: int) -> Address:
        """Return the address one step further along the tree, in its child `index`."""
        return self._replace(path=(*self.path, index))


class Purpose(Enum):
    """What a random choice about one group is for, see `noise.generator_at`; keeps their random numbers apart.

    The values follow seed, iteration and group in what seeds the generator: a change gives a run other choices.
    """

    UPDATE_SHARES = ()
    CANDIDATES = (1,)
    NOISE_LEVELS = (2,)
    NODES = (3,)
