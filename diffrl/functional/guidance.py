"""Two guidances at once: one that is an input of the network, and the classifier-free one beside it."""

from __future__ import annotations


class Embedded(float):
    """A guidance that the network is given as a number, with the scale of the classifier-free one beside it.

    Args:
        scale: what the network is given.
        beside: of the classifier-free guidance; 1 is off.
    """

    beside: float

    def __new__(cls, scale: float, beside: float) -> Embedded:
        """Make the number, which cannot change afterwards."""
        made = super().__new__(cls, scale)
        made.beside = beside
        return made


def beside(guidance_scale: float, usual: float | None) -> float:
    """Return the scale of the classifier-free guidance beside an embedded one.

    Args:
        guidance_scale: `Embedded` where a loss asks for a scale of its own.
        usual: the model's, with which samples are drawn; None or 1 = it has none, whatever is asked.
    """
    if usual is None or usual <= 1:
        return 1.0
    return guidance_scale.beside if isinstance(guidance_scale, Embedded) else usual
