"""CUDA's autocast on a CPU for a whole session: `pytest -p tests.cuda_rules`."""

from torch.library import Library

from diffrl.cost.cuda_rules import install


def pytest_configure() -> None:
    """Hold every test of the session to CUDA's rules."""
    global LIBRARY
    LIBRARY = Library("aten", "IMPL")
    install(LIBRARY)
