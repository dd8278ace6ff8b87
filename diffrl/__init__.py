"""diffrl: online reinforcement learning for flow-matching image and video generators.

The command line and this package are two doors to the same functions; docs/python.md shows the second on one page.

    import diffrl

    run = diffrl.train(diffrl.load_config("configs/quickstart.yaml", {"run.iterations": 3}))
    run.metrics()

Nothing heavy is imported before a name is used.
"""

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from diffrl.api import generate, resume, score, train
    from diffrl.config import Config, load_config
    from diffrl.errors import CheckpointError, ConfigError, DiffrlError, GuardStop
    from diffrl.objectives.own import SampleObjective, StepObjective
    from diffrl.run.callbacks import Callback
    from diffrl.run.results import Run, Sample, open_run

_ELSEWHERE = {
    "Callback": "run.callbacks",
    "CheckpointError": "errors",
    "Config": "config",
    "ConfigError": "errors",
    "DiffrlError": "errors",
    "GuardStop": "errors",
    "Run": "run.results",
    "Sample": "run.results",
    "SampleObjective": "objectives.own",
    "StepObjective": "objectives.own",
    "generate": "api",
    "load_config": "config",
    "open_run": "run.results",
    "resume": "api",
    "score": "api",
    "train": "api",
}

__all__ = [
    "Callback",
    "CheckpointError",
    "Config",
    "ConfigError",
    "DiffrlError",
    "GuardStop",
    "Run",
    "Sample",
    "SampleObjective",
    "StepObjective",
    "generate",
    "load_config",
    "open_run",
    "resume",
    "score",
    "train",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _ELSEWHERE:
        raise AttributeError(f"module 'diffrl' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"diffrl.{_ELSEWHERE[name]}"), name)


def __dir__() -> list[str]:
    """List the public names too, for editors and notebooks."""
    return sorted({*globals(), *__all__})
