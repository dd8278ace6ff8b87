"""The mistakes of scripts/mutations.py can still be made: each text is once in its file, each test file exists."""

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SPEC = importlib.util.spec_from_file_location("mutations", ROOT / "scripts" / "mutations.py")
mutations = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(mutations)


def test_every_mistake_can_still_be_made():
    assert len(mutations.MUTATIONS) >= 40
    for mutation in mutations.MUTATIONS:
        text = (ROOT / "diffrl" / mutation.file).read_text(encoding="utf-8")
        assert text.count(mutation.old) == 1, mutation
        assert text.replace(mutation.old, mutation.new) != text
        assert all((ROOT / "tests" / name).exists() for name in mutation.tests.split()), mutation


@pytest.mark.slow
@pytest.mark.parametrize("mutation", mutations.MUTATIONS, ids=lambda m: f"{m.file}:{m.old.strip()[:30]}")
def test_every_mistake_is_noticed(mutation):
    assert mutations.noticed(mutation)
