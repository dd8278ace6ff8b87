"""What a run and its readers say alike: marks in log.txt of how it ended, and where it went on with other inputs."""

from collections.abc import Iterable

STOPPED, FAILED, RESUMED = "Stopped: ", "Failed: ", "Resumed after iteration "
"""How lines begin: a guard ended the run, an error did, it goes on."""


def other_inputs(iteration: int, names: Iterable[str]) -> str:
    """Say after which iteration a run went on with other inputs than before."""
    listed = ", ".join(names)
    return f"After iteration {iteration}, other inputs: {listed}. What depends on them does not compare across it."
