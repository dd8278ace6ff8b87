"""What any scorer must keep to, checked on a scorer as it is: ours in the tests, yours before you train on it.

    from reward_models import check_scorer
    problems = check_scorer(MyScorer())        # an empty list if all is well

On the command line: python -m reward_models rewards check my_module:MyScorer

Nothing that a scorer does ends the check: whatever it raises is told as a problem.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from reward_models.asking import changes, output_problems, own_copy
from reward_models.base import RewardBatch, RewardOutput, Scorer, ScorerSpec
from reward_models.common.errors import RewardError
from reward_models.common.messages import describe
from reward_models.process_state import changed_settings, put_back, read_settings, settings_restored
from reward_models.self_test import FPS, Sample, clip, contrasts_of, drawing

TOLERANCE = 2e-4
"""Relative difference of a score alone and in a batch that is still rounding, for float32 weights."""
ODD_SIZE = (53, 37)
"""Height and width in pixels, of which most scorers must resize or pad one, crop the other."""
_RAISED = (Exception, SystemExit, GeneratorExit)
"""What a stranger's code may raise."""


def check_scorer(
    scorer: Scorer, metadata: Mapping[str, Any] | None = None, samples: Sequence[Sample] | None = None
) -> list[str]:
    """Hold a scorer against the contract. It ends on the CPU.

    Args:
        scorer: any scorer, on any device.
        metadata: what every sample carries, for scorers that require some.
        samples: at least three samples of one size to score; default: the self-test's, or drawn ones.

    Returns:
        What is wrong, one sentence each.
    """
    try:
        spec = scorer.spec
    except _RAISED:  # there is none, or it is a property that raises
        spec = None
    if not isinstance(spec, ScorerSpec):
        return ["It must have an attribute `spec` that is a reward_models.ScorerSpec."]
    if not callable(scorer):
        return ["It must be callable: __call__(self, batch: RewardBatch) -> RewardOutput."]
    problems: list[str] = []
    with settings_restored(), torch.enable_grad():  # as a careless caller has it
        try:
            batch = _batch(scorer, metadata, samples)
            lacking = _lacking(spec, batch)
            if lacking:
                return [*problems, lacking]
            problems += _check_scores(scorer, batch)
            problems += _check_refusals(scorer, batch)
        except _RAISED as error:  # of a spec, contrasts or samples that are none
            problems.append(f"Its spec, or its samples, cannot be used: {describe(error)}.")
        problems += _check_move(scorer)
    return list(dict.fromkeys(problems))


def check_output(spec: ScorerSpec, output: RewardOutput, count: int) -> list[str]:
    """Return what is wrong with an output for `count` samples."""
    if problems := output_problems(output, count):
        return problems
    for name, column in {"`raw`": output.raw, **{f"The part {key!r}": p for key, p in output.parts.items()}}.items():
        if column.dtype != torch.float32:
            problems.append(f"{name} must be float32. Got {column.dtype}.")
        elif column.requires_grad:
            problems.append(f"{name} must not require gradients: compute it under torch.no_grad().")
        elif column is not output.raw and bool(torch.isinf(column).any()):
            problems.append(f"{name} must be finite, or NaN where it is unknown. Got {column.tolist()}.")
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
    return problems


def same(a: Tensor, b: Tensor, tolerance: float) -> bool:
    """Return whether scores agree, relative to the larger of 1 and their size; NaN equals NaN."""
    return bool(torch.allclose(a, b, rtol=tolerance, atol=tolerance, equal_nan=True))


def _batch(scorer: Scorer, metadata: Mapping[str, Any] | None, samples: Sequence[Sample] | None) -> RewardBatch:
    chosen = list(samples) if samples is not None else _samples(scorer)
    return RewardBatch(
        torch.stack([sample.media for sample in chosen]),
        [sample.prompt for sample in chosen],
        [{**sample.metadata, **(metadata or {})} for sample in chosen],
        FPS if chosen[0].media.ndim == 4 else None,
        [0] * len(chosen) if scorer.spec.scope == "group" else (),
        [_source(sample) for sample in chosen] if scorer.spec.uses_source else (),
    )


def _source(sample: Sample) -> Tensor:
    """Return the image that a sample is an edit of; one that has none is taken for an edit that changed nothing."""
    if sample.source is not None:
        return sample.source
    return sample.media if sample.media.ndim == 3 else sample.media[0]


def _lacking(spec: ScorerSpec, batch: RewardBatch) -> str | None:
    keys = [key for key in spec.requires if any(key not in meta for meta in batch.metadata)]
    return (
        f"It requires {', '.join(keys)} in the metadata, which the samples lack: give check_scorer(scorer, "
        "metadata={...}), or give the scorer a method contrasts() whose samples carry it."
        if keys
        else None
    )


def _samples(scorer: Scorer) -> list[Sample]:
    """Return the self-test's samples of the commonest size, at least three, filled up with drawings."""
    samples = [sample for contrast in contrasts_of(scorer) for sample in (contrast.good, contrast.bad)]
    shape = samples[0].media.shape
    alike = [sample for sample in samples if sample.media.shape == shape][:4]
    for color in ("red", "blue", "green"):
        if len(alike) < 3:
            media = clip(color, "circle") if len(shape) == 4 else drawing(color, "circle", side=shape[-1])
            alike.append(Sample(media, alike[0].prompt, alike[0].metadata, alike[0].source))
    return alike


def _scored(scorer: Scorer, batch: RewardBatch, what: str) -> tuple[RewardOutput | None, list[str]]:
    """Return a well-formed output, or None, and what is wrong with the output or with the call.

    Raises:
        RewardError: the scorer's own.
    """
    copied, settings = own_copy(batch), read_settings()
    try:
        output = scorer(copied)
    except RewardError:
        raise
    except _RAISED as error:
        return None, [f"Scoring {what} raised {describe(error)}."]
    problems = [f"It must not change the {field} it is given." for field in changes(copied, batch)]
    for setting in changed_settings(settings):
        problems.append(
            f"It must not draw from {setting.title}, nor seed them: give it a generator."
            if setting.scope == "random"
            else f"It must leave {setting.title} as it was: put back what it changes."
        )
    put_back(settings)
    try:
        wrong = check_output(scorer.spec, output, len(batch))
    except _RAISED as error:  # of a range or parts that are none
        wrong = [f"Its output cannot be read: {describe(error)}."]
    return (None if wrong else output), [*problems, *(f"Of {what}: {problem}" for problem in wrong)]


def _check_scores(scorer: Scorer, batch: RewardBatch) -> list[str]:
    """Return the same scores whenever and in whatever company; of groups only the order may change."""
    count, what = len(batch), f"{len(batch)} {batch.kind}s"
    problems: list[str] = []

    def score(asked: RewardBatch, named: str, may_refuse: bool = False) -> Tensor | None:
        try:
            output, wrong = _scored(scorer, asked, named)
        except RewardError as error:
            output, wrong = None, [] if may_refuse else [f"Scoring {named} raised {describe(error)}."]
        problems.extend(problem for problem in wrong if problem not in problems)
        if output is not None and asked is batch and not bool(output.ok.any()):
            problems.append(f"No sample could be scored: {output.errors[0]}")
            return None
        return None if output is None else output.raw

    whole = score(batch, what)
    if whole is None:
        return problems
    again = score(batch, what)
    if again is not None and not same(again, whole, 0.0):
        problems.append("Scoring the same batch twice must give the same scores.")
    order = [*range(1, count), 0]
    turned = score(batch.rows(order), f"{what} in another order")
    if turned is not None and not same(turned, whole[order], TOLERANCE):
        problems.append("The scores of a batch in another order must be the same scores in that order.")
    if not scorer.spec.uses_prompt:
        renamed = score(replace(batch, prompts=[f"another prompt {row}" for row in range(count)]), "other prompts")
        if renamed is not None and not same(renamed, whole, 0.0):
            problems.append("Its spec says uses_prompt=False, so other prompts must give the same scores.")
    if scorer.spec.scope == "sample":
        rows = [score(batch.rows([row]), "a batch of one") for row in range(count)]
        alone = [row for row in rows if row is not None]
        if len(alone) == count and not same(torch.cat(alone), whole, TOLERANCE):
            values = torch.cat(alone).tolist()
            problems.append(f"A sample alone must score as in a batch. Got {values} and {whole.tolist()}.")
    else:
        score(batch.rows([0]), "a group of one", may_refuse=True)
    height, width = ODD_SIZE
    lines = torch.arange(height) * batch.media.shape[-2] // height
    columns = torch.arange(width) * batch.media.shape[-1] // width
    small = batch.media[..., lines[:, None], columns].contiguous()
    score(replace(batch, media=small), f"{what} of {height} x {width} pixels", may_refuse=True)
    return problems


def _check_refusals(scorer: Scorer, batch: RewardBatch) -> list[str]:
    """Return media of the wrong kind and missing metadata raise a RewardError."""
    spec, problems = scorer.spec, []
    if set(spec.media) == {"image"}:
        wrong = replace(batch, media=batch.media[:, None].expand(-1, 3, -1, -1, -1), fps=FPS)
        problems += _must_refuse(scorer, wrong, "videos, which are not among its media")
    elif set(spec.media) == {"video"}:
        wrong = replace(batch, media=batch.media[:, 0], fps=None)
        problems += _must_refuse(scorer, wrong, "images, which are not among its media")
    if spec.uses_source:
        problems += _must_refuse(scorer, replace(batch, sources=()), "samples without the images that they edit")
    if spec.requires:
        lacking = f"samples without {', '.join(spec.requires)} in their metadata"
        problems += _must_refuse(scorer, replace(batch, metadata=()), lacking)
    for key in spec.requires:
        last = {name: value for name, value in batch.meta(-1).items() if name != key}
        partly = replace(batch, metadata=[*batch.metadata[:-1], last])
        problems += _must_refuse(scorer, partly, f"a batch whose last sample has no {key} in its metadata")
    return problems


def _must_refuse(scorer: Scorer, batch: RewardBatch, what: str) -> list[str]:
    rule = f"It must raise a RewardError for {what} (begin with self.spec.require(batch))."
    try:
        scorer(batch)
    except RewardError:
        return []
    except _RAISED as error:  # any other exception is a broken promise, and named
        return [f"{rule} It raised {describe(error)}."]
    return [rule]


def _check_move(scorer: Scorer) -> list[str]:
    rule = "`to(device)` must return the scorer itself."
    try:
        moved = scorer.to("cpu")
    except _RAISED as error:
        return [f"{rule} It raised {describe(error)}."]
    return [] if moved is scorer else [f"{rule} Got {type(moved).__name__}."]
