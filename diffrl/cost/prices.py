"""What a network evaluation costs by its purpose and precision: price tables, each number with its source.

The unit is one evaluation without gradient in the training precision. A run counts its evaluations by purpose, so any
table can price it afterwards, on hardware that was not there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from diffrl.cost.meter import CHECKPOINTED, TRAINED, UNGRADED
from diffrl.errors import ConfigError
from diffrl.precision.formats import PRECISIONS

ARITHMETIC = "operations: forward 1, backward 2, with checkpointing forward again"


@dataclass(frozen=True)
class Prices:
    """A price table."""

    name: str  # of the table
    hardware: str  # that it is for
    trained: float = TRAINED  # of an evaluation with gradient
    checkpointed: float = CHECKPOINTED  # of one with activation checkpointing
    # of an evaluation of the exploring stage, by its precision; None = 1 whatever its precision
    explore: Mapping[str, float] | None = None
    # of "trained" and of each precision
    sources: Mapping[str, str] = field(default_factory=lambda: {"trained": ARITHMETIC})

    def exploring(self, precision: str) -> float:
        """Return price of one evaluation of the exploring stage.

        Raises:
            ConfigError: the table has none for it.
        """
        if self.explore is None:
            return 1.0
        if precision not in self.explore:
            raise ConfigError(
                f"A price table must know the precision that explores. Got {precision} with {self.name}, which knows "
                f"{', '.join(self.explore) or 'none'}. Choose another, or give a price: --prices "
                f"{self.name},{precision}=0.5."
            )
        return self.explore[precision]

    def cost(self, counts: Mapping[str, float], low: Mapping[str, str], checkpointing: bool) -> float:
        """Return what training has cost; the on-policy gate, once a run, and held-out evaluations are left out.

        Args:
            counts: evaluations by purpose; those of `diffrl.cost.meter.UNGRADED` and "update" count.
            low: purposes that a low-precision copy serves, with its precision; see `RolloutSettings.low_precision`.
            checkpointing: whether activations are computed again in the update.

        Raises:
            ConfigError: the table has no price for the precision.
        """
        ungraded = sum(counts.get(name, 0) * (self.exploring(low[name]) if name in low else 1.0) for name in UNGRADED)
        return ungraded + (self.checkpointed if checkpointing else self.trained) * counts.get("update", 0)

    def describe(self) -> str:
        """Return the whole table in a sentence, sources included."""
        prices = {"trained": self.trained, **(self.explore or {})}
        each = [f"{name} {price:g} ({self.sources[name]})" for name, price in prices.items()]
        unknown = "; exploring evaluations 1 in any precision" if self.explore is None else ""
        return (
            f"Prices: {self.name}, {self.hardware}, in evaluations without gradient in the training precision: "
            f"{'; '.join(each)}; with checkpointing a trained one {self.checkpointed:g}{unknown}."
        )


def _table(name: str, hardware: str, training: str, trained: tuple[float, str], checkpointed: float) -> Prices:
    """Make a table of the prices that the records of precisions have for it.

    Args:
        name: of the table.
        hardware: that it is for.
        training: the training precision, which costs 1.
        trained: price of an evaluation with gradient, and its source.
        checkpointed: the same with activation checkpointing.
    """
    known = {precision.name: precision.prices[name] for precision in PRECISIONS.values() if name in precision.prices}
    return Prices(
        name,
        hardware,
        trained[0],
        checkpointed,
        explore={training: 1.0, **{precision: price.amount for precision, price in known.items()}},
        sources={
            "trained": trained[1],
            training: "the training precision",
            **{precision: price.source for precision, price in known.items()},
        },
    )


COUNTED = (TRAINED, ARITHMETIC)
MEASURED = (2.8, "measured, docs/performance.md; with checkpointing one more forward pass")
TABLES = {
    table.name: table
    for table in (
        Prices("equal", "no hardware: every precision costs the same"),
        _table(
            "cpu-measured",
            "the tiny SD3 transformer on one thread of a 2-core x86-64 with AVX2, batches of 128",
            "float32",
            MEASURED,
            3.8,
        ),
        _table("h100-bf16-fp8", "one H100, compiled; published, not measured here", "bfloat16", COUNTED, CHECKPOINTED),
        _table("b200-nvfp4", "one B200, compiled; published, not measured here", "bfloat16", COUNTED, CHECKPOINTED),
    )
}
EQUAL = TABLES["equal"]


def parse_prices(text: str) -> Prices:
    """Read "TABLE" or "TABLE,precision=price,...", which sets or adds prices of exploring evaluations.

    Raises:
        ConfigError: there is no such table, or a price is not a number above 0.
    """
    name, *changes = (part.strip() for part in text.split(","))
    if name not in TABLES:
        raise ConfigError(f"--prices must begin with {', '.join(TABLES)}. Got {text!r}. Choose one of them.")
    table = TABLES[name]
    for part in changes:
        precision, _, amount = (piece.strip() for piece in part.partition("="))
        try:
            price = float(amount)
        except ValueError:
            price = math.nan
        if not precision.isidentifier() or not 0 < price < math.inf:
            raise ConfigError(
                f"A price must be precision=NUMBER above 0. Got {part!r}. Write for example {name},nvfp4=0.25."
            )
        table = replace(
            table,
            name=f"{table.name},{precision}={price:g}",
            explore={**(table.explore or {}), precision: price},
            sources={**table.sources, precision: "given"},
        )
    return table
