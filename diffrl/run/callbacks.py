"""Code of the user's own that a run tells what happens, and that may end it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from diffrl.errors import ConfigError, DiffrlError
from diffrl.run.results import Run
from reward_models.common.messages import show


class Callback:
    """What a run tells while it goes on: subclass it, and define the methods that you need.

    They are called on the main process alone, between the stations of training, so whatever they take is added to the
    run's time. `on_iteration` and `on_evaluation` end the run by returning True: it writes a checkpoint and stops, and
    can be resumed. One that raises ends the run likewise, after a checkpoint, and its exception reaches the caller of
    `diffrl.train` as it is.
    """

    def on_start(self, run: Run) -> None:
        """Receive that the model is loaded and the run's directory is there.

        Args:
            run: the run, for its directory and its configuration.
        """

    def on_iteration(self, iteration: int, metrics: Mapping[str, float]) -> bool | None:
        """Return an iteration is done and written down.

        Args:
            iteration: of the run, from 1.
            metrics: its row of metrics.jsonl; docs/metrics.md explains each. NaN where a value is not known.

        Returns:
            True to end the run here.
        """

    def on_evaluation(self, iteration: int, scores: Mapping[str, float]) -> bool | None:
        """Return a held-out evaluation is done and written down.

        Args:
            iteration: how many were trained before it; 0 is the model before alignment.
            scores: of each of eval.rewards, the mean over the held-out samples; NaN where it could not be measured.

        Returns:
            True to end the run here.
        """

    def on_end(self, run: Run) -> None:
        """Receive that the run is over: after its last iteration or a request to stop, not after an error.

        Args:
            run: the run, whose checkpoint and metrics are written.
        """


class Callbacks:
    """All callbacks of a run, and what they asked for."""

    def __init__(self, callbacks: Sequence[Callback] = (), main: bool = True):
        self._all, self._main = tuple(callbacks), main
        self._failure: Exception | None = None
        self.stop = False

    def __bool__(self) -> bool:
        return bool(self._all)

    def start(self, run: Run) -> None:
        """Announce that the run begins, or goes on."""
        for callback in self._all if self._main else ():
            callback.on_start(run)

    def iteration(self, iteration: int, metrics: Mapping[str, float]) -> None:
        """Announce an iteration that is done."""
        self._tell("on_iteration", iteration, metrics)

    def evaluation(self, iteration: int, scores: Mapping[str, float]) -> None:
        """Announce an evaluation that is done."""
        self._tell("on_evaluation", iteration, scores)

    def end(self, run: Run) -> None:
        """Announce that the run is over."""
        for callback in self._all if self._main else ():
            callback.on_end(run)

    def raise_failure(self) -> None:
        """Raise what a callback raised, now that what was trained is kept."""
        if self._failure is not None:
            raise self._failure

    def _tell(self, method: str, iteration: int, values: Mapping[str, float]) -> None:
        """Ask each; one that raises stops the run, so that all ranks keep what was trained before it is heard of."""
        for callback in self._all if self._main else ():
            try:
                self.stop |= _answer(getattr(callback, method)(iteration, dict(values)), callback, method)
            except Exception as error:
                self._failure, self.stop = error, True
                return


def require_callbacks(callbacks: Sequence[Any]) -> None:
    """Refuse what is no callback, before anything is loaded.

    Raises:
        ConfigError: says what was given.
    """
    for callback in callbacks:
        if not isinstance(callback, Callback):
            what = f"the class {callback.__name__}" if isinstance(callback, type) else f"a {type(callback).__name__}"
            fix = "Make an instance of it." if isinstance(callback, type) else "Subclass diffrl.Callback."
            raise ConfigError(f"callbacks must be instances of diffrl.Callback. Got {what}. {fix}")


def _answer(answer: Any, callback: Callback, method: str) -> bool:
    if answer is None or isinstance(answer, bool):
        return bool(answer)
    raise DiffrlError(
        f"{type(callback).__name__}.{method} must return True to end the run, or None. Got {show(answer)}. Return "
        "nothing where the run is to go on."
    )
