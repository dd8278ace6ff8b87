"""What any scorer must keep to, checked on a scorer as it is: ours in the tests, yours before you train on it.

    from reward_models import check_scorer
    problems = check_scorer(MyScorer())        # an empty list if all is well

On the command line: python -m reward_models --check my_module:MyScorer
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from reward_models.base import RewardBatch, RewardOutput, Scorer, ScorerSpec
from reward_models.errors import RewardError
from reward_models.self_test import FPS, Sample, clip, contrasts_of, drawing

TOLERANCE = 2e-4
"""Relative difference of a score alone and in a batch that is still rounding, for float32 weights."""


def check_scorer(
    scorer: Scorer, metadata: Mapping[str, Any] | None = None, samples: Sequence[Sample] | None = None
) -> list[str]:
    """Hold a scorer against the contract.

    Args:
        scorer: any scorer, on any device.
        metadata: what every sample carries, for scorers that require some.
        samples: at least three samples of one size to score; default: the self-test's, or drawn ones.

    Returns:
        What is wrong, one sentence each.
    """
    spec = getattr(scorer, "spec", None)
    if not isinstance(spec, ScorerSpec):
        return ["It must have an attribute `spec` that is a reward_models.ScorerSpec."]
    problems = _check_spec(spec)
    chosen = list(samples) if samples is not None else _samples(scorer)
    extra = dict(metadata or {})
    kind = "video" if chosen[0].media.ndim == 4 else "image"
    batch = RewardBatch(
        torch.stack([sample.media for sample in chosen]),
        [sample.prompt for sample in chosen],
        [{**sample.metadata, **extra} for sample in chosen],
        FPS if kind == "video" else None,
        [0] * len(chosen) if spec.scope == "group" else (),
    )
    before = batch.media.clone()
    try:
        whole = scorer(batch)
    except Exception as error:  # whatever a stranger's scorer raises is what the check has to tell
        return [*problems, f"Scoring {len(batch)} {kind}s raised {type(error).__name__}: {error}"]
    problems += check_output(spec, whole, len(batch))
    if problems:
        return problems
    if not torch.equal(batch.media, before):
        problems.append("It must not change the media it is given.")
    if not same(scorer(batch).raw, whole.raw, 0.0):
        problems.append("Scoring the same batch twice must give the same scores.")
    problems += _check_batches(scorer, batch, whole)
    problems += _check_refusals(scorer, batch)
    if scorer.to("cpu") is not scorer:
        problems.append("`to(device)` must return the scorer itself.")
    return problems


def check_output(spec: ScorerSpec, output: RewardOutput, count: int) -> list[str]:
    """What is wrong with an output for `count` samples."""
    problems = []
    for name, tensor, dtype in (("raw", output.raw, torch.float32), ("ok", output.ok, torch.bool)):
        if tensor.shape != (count,) or tensor.dtype != dtype:
            problems.append(f"`{name}` must be ({count},) {dtype}. Got {tuple(tensor.shape)} {tensor.dtype}.")
    if len(output.errors) != count:
        problems.append(f"`errors` must have {count} entries. Got {len(output.errors)}.")
    if problems:
        return problems
    low, high = spec.range
    for row, (value, good, error) in enumerate(
        zip(output.raw.tolist(), output.ok.tolist(), output.errors, strict=True)
    ):
        if good and not math.isfinite(value):
            problems.append(f"Sample {row} is ok, but its score is {value}.")
        elif good and not low - 1e-5 <= value <= high + 1e-5:
            problems.append(f"Sample {row} scores {value:g}, outside the range [{low:g}, {high:g}] of the spec.")
        elif not good and not math.isnan(value):
            problems.append(f"Sample {row} is not ok, so its score must be NaN. Got {value}.")
        if good == bool(error):
            problems.append(f"Sample {row} has ok={good} and the error {error!r}: one of them is wrong.")
    for name, part in output.parts.items():
        if part.shape != (count,) or part.dtype != torch.float32:
            problems.append(f"The part {name!r} must be ({count},) float32. Got {tuple(part.shape)} {part.dtype}.")
    if count and not bool(output.ok.any()):
        problems.append(f"No sample could be scored: {output.errors[0]}")
    return problems


def same(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Whether scores agree, relative to the larger of 1 and their size; NaN equals NaN."""
    return bool(torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True))


def _check_spec(spec: ScorerSpec) -> list[str]:
    problems = []
    if not spec.name or not spec.description:
        problems.append("The spec must have a name and a description.")
    if not spec.range[0] < spec.range[1]:
        problems.append(f"The spec's range must be (lower, upper). Got {spec.range}.")
    if not spec.media or set(spec.media) - {"image", "video"}:
        problems.append(f"The spec's media must be of 'image' and 'video'. Got {spec.media}.")
    if spec.scaling[1] == 0:
        problems.append("The spec's scaling is (shift, scale), and scale divides: it must not be 0.")
    if spec.weights and not spec.weights_license:
        problems.append("A spec that names weights must name their licence, or say that it is unknown.")
    return problems


def _samples(scorer: Scorer) -> list[Sample]:
    """The self-test's samples of the commonest size, at least three, filled up with drawings."""
    found = [sample for contrast in contrasts_of(scorer) for sample in (contrast.good, contrast.bad)]
    shape = found[0].media.shape
    alike = [sample for sample in found if sample.media.shape == shape][:4]
    for color in ("red", "blue", "green"):
        if len(alike) < 3:
            media = clip(color, "circle") if len(shape) == 4 else drawing(color, "circle", side=shape[-1])
            alike.append(Sample(media, alike[0].prompt, alike[0].metadata))
    return alike


def _check_batches(scorer: Scorer, batch: RewardBatch, whole: RewardOutput) -> list[str]:
    """A score is the sample's own: alone, in another order, with others. Of groups only the order may change."""
    problems = []
    count = len(batch)
    order = [*range(1, count), 0]
    turned = scorer(batch.rows(order))
    if not same(turned.raw, whole.raw[order], TOLERANCE):
        problems.append("The scores of a batch in another order must be the same scores in that order.")
    if scorer.spec.scope == "sample":
        alone = torch.cat([scorer(batch.rows([row])).raw for row in range(count)])
        if not same(alone, whole.raw, TOLERANCE):
            problems.append(f"A sample alone must score as in a batch. Got {alone.tolist()} and {whole.raw.tolist()}.")
    return problems


def _check_refusals(scorer: Scorer, batch: RewardBatch) -> list[str]:
    """Media of the wrong kind and missing metadata raise a RewardError."""
    spec, problems = scorer.spec, []
    if set(spec.media) == {"image"}:
        wrong = RewardBatch(batch.media[:, None].expand(-1, 3, -1, -1, -1), batch.prompts, batch.metadata, FPS)
        problems += _must_refuse(lambda: scorer(wrong), "videos, which are not among its media")
    elif set(spec.media) == {"video"}:
        wrong = RewardBatch(batch.media[:, 0], batch.prompts, batch.metadata)
        problems += _must_refuse(lambda: scorer(wrong), "images, which are not among its media")
    if spec.requires:
        bare = RewardBatch(batch.media, batch.prompts, (), batch.fps, batch.groups)
        problems += _must_refuse(lambda: scorer(bare), f"samples without {', '.join(spec.requires)} in their metadata")
    return problems


def _must_refuse(call: Callable[[], Any], what: str) -> list[str]:
    rule = f"It must raise a RewardError for {what} (begin with self.spec.require(batch))."
    try:
        call()
    except RewardError:
        return []
    except Exception as error:  # any other exception is a broken promise, and named
        return [f"{rule} It raised {type(error).__name__}: {error}"]
    return [rule]
