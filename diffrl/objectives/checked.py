"""The contract of an objective of the user's own: every answer is held against it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from diffrl.errors import DiffrlError
from diffrl.objectives.base import Objective, Trained
from diffrl.objectives.examples import Examples
from diffrl.objectives.grpo import EdgeExamples
from diffrl.objectives.own import OwnObjective
from diffrl.records import Credit, Rollout
from diffrl.registry import own_code
from diffrl.rollout.denoise import Velocity
from diffrl.rollout.density import retaken
from reward_models.common.messages import show


class Checked(Objective[Any]):
    """An objective of the user's own, whose every answer is held against the contract.

    What does not keep it would train something else, or end in a message about nothing that its author has written.

    Args:
        inner: the objective.
    """

    def __init__(self, inner: OwnObjective):
        self.inner = inner
        self.name = f"{type(inner).__module__}:{type(inner).__name__}"

    @property
    def trains(self) -> Trained:  # type: ignore[override]
        """What its class says."""
        return self.inner.trains

    @property
    def kl(self) -> float:
        """Weight of the distance to the reference as far as it is known: an option or attribute of this name."""
        weight = getattr(self.inner, "kl", 0.0)
        return float(weight) if isinstance(weight, (int, float)) else 0.0

    @property
    def needs_reference(self) -> bool:
        """What its class says."""
        return bool(self.inner.needs_reference)

    @property
    def needs_old_velocity(self) -> bool:
        """What its class says."""
        return bool(self.inner.needs_old_velocity)

    @property
    def metrics(self) -> tuple[str, ...]:
        """What its class says."""
        return tuple(self.inner.metrics)

    @property
    def levels(self) -> int:
        """What its class says."""
        return int(self.inner.levels)

    @property
    def trains_uncredited(self) -> bool:
        """What a loss makes of samples with an advantage of 0 is its own affair; of steps see `StepObjective`."""
        return self.trains == "samples"

    def examples(
        self, rollout: Rollout, credit: Credit, grad_mask: Tensor, old: Velocity, micro_batch: int
    ) -> Examples:
        """Return its examples, checked.

        Raises:
            DiffrlError: it raised, they are not as many as planned, or belong to no prompt of the batch.
        """
        before = _versions((rollout, credit, grad_mask))
        with own_code(f"The objective {self.name}"):
            examples: Any = self.inner.examples(rollout, credit, grad_mask, old, micro_batch)
        if _versions((rollout, credit, grad_mask)) != before:
            raise self._error("`examples` must leave the rollout as it is. It works in place on a tensor of it")
        if not isinstance(getattr(examples, "prompt", None), Tensor):
            raise self._error(f"`examples` must return diffrl.objectives.examples.Examples. Got {_shape(examples)}")
        planned, units = len(rollout) * self.inner.levels, len(examples.prompt)
        if self.inner.trains == "samples" and units != planned:
            raise self._error(
                f"`examples` must give a unit for each of {len(rollout)} samples at each of `levels` = "
                f"{self.inner.levels} noise levels, {planned} in all. Got {units}"
            )
        rows = examples.prompt.unique().tolist()
        if not set(rows) <= set(range(len(rollout.batch.prompts))):
            raise self._error(
                f"`examples` must name prompts by their rows in the batch, 0 to {len(rollout.batch.prompts) - 1}. Got "
                f"{rows}"
            )
        return cast(Examples, examples)

    def loss(
        self, examples: Examples, policy: Velocity, reference: Velocity | None
    ) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Return its loss, checked. A loss that is not finite is left to guards.nonfinite_loss.

        Raises:
            DiffrlError: it raised, is no loss of each term, has no gradient, or its metrics are not those declared.
        """
        before, velocities = _versions(examples), list[Any]()

        def watched(*asked: Tensor) -> Tensor:
            velocity = policy(*asked)
            velocities.append(velocity.grad_fn)
            return velocity

        with own_code(f"The objective {self.name}"):
            answer: Any = self.inner.loss(examples, watched, reference)
        if _versions(examples) != before:
            raise self._error("`loss` must leave its examples as they are. It works in place on a tensor of them")
        if not isinstance(answer, tuple) or len(answer) != 2 or not isinstance(answer[1], Mapping):
            raise self._error(f"`loss` must return a pair, (loss, metrics). Got a {type(answer).__name__}")
        loss, metrics = answer
        terms, device = (len(examples.term_prompt),), examples.term_prompt.device
        if not _is_of_terms(loss, terms, device):
            raise self._error(
                f"`loss` must give the loss of each term, {terms}, not reduced, on {device}, in real numbers. "
                f"Got {_shape(loss)}"
            )
        if not _follows(loss, velocities):
            raise self._error(
                "`loss` must depend on the policy with gradient, policy(*examples.start). Got a loss that has none"
            )
        if set(metrics) != set(self.metrics):
            raise self._error(
                f"`loss` must give the metrics that the class declares, metrics = {self.metrics}. Got "
                f"{tuple(map(str, metrics))}"
            )
        for name, values in metrics.items():
            if not _is_of_terms(values, terms, device):
                raise self._error(
                    f"`loss` must give the metric {name} of each term, {terms}, on {device}, in real numbers. "
                    f"Got {_shape(values)}"
                )
        return loss, {name: values.detach() for name, values in metrics.items()}

    def on_policy_errors(self, rollout: Rollout, policy: Velocity, micro_batch: int) -> Sequence[tuple[int, float]]:
        """Return its errors, checked.

        Raises:
            DiffrlError: it raised, or gives no pairs of numbers.
        """
        with own_code(f"The objective {self.name}"):
            errors: Any = self.inner.on_policy_errors(rollout, policy, micro_batch)
        if not isinstance(errors, Sequence) or not all(
            isinstance(pair, tuple) and len(pair) == 2 and all(isinstance(part, int | float) for part in pair)
            for pair in errors
        ):
            raise self._error(f"`on_policy_errors` must return pairs (step, error). Got {show(errors)}")
        return errors

    def retake_densities(self, examples: Any, calls: Sequence[Tensor], policy: Velocity) -> Any:
        """Return steps with the densities of the policy as it is, before the first update too."""
        if not isinstance(examples, EdgeExamples):
            return examples
        return replace(examples, edges=retaken(examples.edges, calls, policy, self.inner.context.steps))

    def on_policy(self, examples: Any, first: bool) -> Any:
        """Return steps as the first update of an iteration takes them, or a later one."""
        return replace(examples, on_policy=first) if isinstance(examples, EdgeExamples) else examples

    def _error(self, problem: str) -> DiffrlError:
        return DiffrlError(f"The objective {self.name} does not keep its contract: {problem}. Mend it.")


def _shape(value: Any) -> str:
    if not isinstance(value, Tensor):
        return f"a {type(value).__name__}"
    kind = "" if value.is_floating_point() else f" of {value.dtype}"
    return f"a tensor {tuple(value.shape)}{kind}" + (f" on {value.device}" if value.device.type != "cpu" else "")


def _follows(loss: Tensor, velocities: Sequence[Any]) -> bool:
    """Return whether gradient flows from a loss to one of the velocities' nodes; None stands for a leaf itself."""
    waiting, known = [loss.grad_fn], set[Any]()
    while waiting:
        node = waiting.pop()
        if node is not None and (node in velocities or None in velocities):
            return True
        if node is not None and node not in known:
            known.add(node)
            waiting += [following for following, _ in node.next_functions]
    return False


def _is_of_terms(values: Any, terms: tuple[int], device: torch.device) -> bool:
    fits = isinstance(values, Tensor) and tuple(values.shape) == terms and values.device == device
    return fits and values.is_floating_point()


def _versions(record: Any) -> list[int]:
    """Return how often each tensor of a record, and of the records in it, was changed in place."""
    if isinstance(record, Tensor):
        return [] if record.is_inference() else [record._version]
    fields = vars(record).values() if is_dataclass(record) else ()
    parts = record if isinstance(record, tuple) else fields
    return [version for part in parts for version in _versions(part)]
