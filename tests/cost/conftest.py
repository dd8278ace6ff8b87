"""Plans of pipelines whose samples have made-up sizes."""

import pytest

from diffrl.cost import plan
from tests.cost.sizes import SIZES


@pytest.fixture
def made_up_sizes(monkeypatch):
    """What samples hold is `SIZES`; it is counted elsewhere."""
    monkeypatch.setattr(plan, "activations_of", lambda config: (SIZES, ""))
