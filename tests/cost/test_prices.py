"""Price tables: sums by hand, and what they refuse."""

import pytest

from diffrl.cost.prices import TABLES, parse_prices
from diffrl.errors import ConfigError

COUNTS = {"explore": 1000, "rollout": 200, "values": 30, "old": 4, "group": 5, "reference": 6, "update": 50}
COUNTS |= {"gate": 10**6, "evaluation": 10**6}  # are no training


@pytest.mark.parametrize(
    ("text", "precision", "checkpointing", "expected"),
    [
        ("equal", "fp8", False, 1000 + 245 + 3 * 50),
        ("equal", None, True, 245 + 4 * 50),
        ("b200-nvfp4", "nvfp4", False, 600 + 245 + 150),
        ("h100-bf16-fp8", "fp8", False, 650 + 245 + 150),
        ("h100-bf16-fp8,nvfp4=0.1", "nvfp4", True, 100 + 245 + 200),
        ("equal, nvfp4 = .25", "nvfp4", False, 250 + 245 + 150),
        ("cpu-measured", "nvfp4", False, 1300 + 245 + 140),
    ],
)
def test_a_cost_is_the_sum_of_counts_times_prices(text, precision, checkpointing, expected):
    counts = COUNTS if precision else COUNTS | {"explore": 0}
    assert parse_prices(text).cost(counts, {"explore": precision} if precision else {}, checkpointing) == pytest.approx(
        expected
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h200", "must begin with equal, cpu-measured"),
        ("equal,nvfp4", "must be precision=NUMBER above 0. Got 'nvfp4'"),
        ("equal,nvfp4=0", "above 0. Got 'nvfp4=0'"),
        ("equal,nvfp4=nan", "above 0"),
        ("equal,=1", "must be precision=NUMBER"),
    ],
)
def test_what_is_no_table_is_refused(text, message):
    with pytest.raises(ConfigError, match=message):
        parse_prices(text)


def test_a_precision_without_a_price_is_no_free_one():
    with pytest.raises(ConfigError, match=r"Got nvfp4 with h100-bf16-fp8, which knows bfloat16, fp8\..*nvfp4=0\.5"):
        parse_prices("h100-bf16-fp8").cost(COUNTS, {"explore": "nvfp4"}, False)
    assert parse_prices("h100-bf16-fp8").cost(COUNTS | {"explore": 0}, {}, False) == 245 + 150


def test_every_price_has_a_source_and_is_told():
    for table in TABLES.values():
        assert set(table.sources) == {"trained", *(table.explore or {})}, table.name
        assert all(
            f"{price:g} ({table.sources[name]})" in table.describe() for name, price in (table.explore or {}).items()
        )
    assert "nvfp4 0.3 (given)" in parse_prices("b200-nvfp4,nvfp4=0.3").describe()
