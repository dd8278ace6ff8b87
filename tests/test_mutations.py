"""The mistakes of tests/attacks/mutations.py can still be made: each expression is once in its function."""

import pytest

from tests.attacks.mutations import MUTATIONS, ROOT, mutated, noticed


def test_every_mistake_can_still_be_made():
    assert len(MUTATIONS) >= 40
    for mutation in MUTATIONS:
        compile(mutated(mutation), mutation.file, "exec")
        assert (ROOT / "tests" / mutation.tests).is_file(), mutation


@pytest.mark.slow
@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda m: f"{m.place}: {m.change}")
def test_every_mistake_is_noticed(mutation):
    assert noticed(mutation)
