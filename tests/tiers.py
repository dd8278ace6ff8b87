"""Which cases of a test run every day, and which only where everything does (CI, `make test-long`)."""

from collections.abc import Collection, Iterable
from typing import Any

import pytest


def daily(cases: Iterable[Any], chosen: Collection[Any], rare: Collection[Any] = ()) -> list[Any]:
    """All cases of a parameter; those that are not chosen are marked `long`, or if they are rare `slow`.

    Several parameters make a tuple a case.
    """
    cases = list(cases)
    assert all(case in cases for case in (*chosen, *rare)), "named, but no case"

    def marks(case: Any) -> Any:
        return () if case in chosen else pytest.mark.slow if case in rare else pytest.mark.long

    return [pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=marks(case)) for case in cases]
