"""A row of `diffrl evaluate`: means with their intervals, what they are of, and the table of several."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import torch
from rich.table import Table
from torch import Tensor

from diffrl import __version__
from diffrl.config.schema import EvalSettings
from diffrl.data.worlds import noise_stream, split_of
from diffrl.display import NOTHING, console_table, plus_minus
from diffrl.statistics import clustered_estimate
from diffrl.training.evaluate import Evaluation

Z = 1.959963984540054
"""Of a normal distribution, 95 % lie within so many standard deviations."""


@dataclass(frozen=True)
class Measured:
    """What one evaluation found, and everything it depends on."""

    weights: str  # "aligned", "base" (of a run, before alignment) or "model" (a pipeline)
    iteration: int | None  # of the checkpoint; 0 for base, None for a pipeline
    digest: str | None  # of a run's trained weights, sha256; None for a pipeline
    prompts: str  # their source
    split: str | None  # of the embedded world; None for other sources
    prompts_left: int  # prompts of the source that were not drawn, for there are fewer samples
    n: int  # samples that every reward could score
    failed: int  # the others
    guidance_scale: float  # 1 is off
    steps: int  # of the denoising
    solver: str  # its solver
    noise_stream: str  # of the noise's addresses, with the seed its whole origin
    noise_seed: int  # see noise_stream
    means: Mapping[str, float]  # by reward, and "reward/part"
    # of the rewards, ends of the 95 % interval over prompts; None of fewer than two that could be scored
    intervals: Mapping[str, tuple[float, float] | None]
    time: str  # when, UTC, ISO 8601
    # diversity and distance to the base, see `export.variety.variety`; None where it was not asked for
    variety: Mapping[str, float] | None = None
    version: str = __version__  # of diffrl

    @property
    def label(self) -> str:
        """Return a name for a folder: "aligned", or with guidance "aligned-cfg3"."""
        return self.weights if self.guidance_scale == 1 else f"{self.weights}-cfg{self.guidance_scale:g}"

    def as_json(self) -> dict[str, Any]:
        """Ready for JSON."""
        return asdict(self)


def measured(
    evaluation: Evaluation,
    settings: EvalSettings,
    source: str,
    listed: int,
    weights: str,
    iteration: int | None,
    digest: str | None,
    variety: Mapping[str, float] | None = None,
) -> Measured:
    """Make the row of an evaluation by one process; `listed` counts its source's prompts, see `Measured`."""
    split, keys = split_of(source), [prompt.key for prompt in evaluation.prompts]
    return Measured(
        weights=weights,
        iteration=iteration,
        digest=digest,
        prompts=source,
        split=None if split is None else split[1],
        prompts_left=max(0, listed - len(evaluation.prompts)),
        n=len(evaluation.prompts) - evaluation.failed,
        failed=evaluation.failed,
        guidance_scale=settings.guidance_scale,
        steps=settings.steps,
        solver=settings.solver,
        noise_stream=noise_stream(source),
        noise_seed=settings.seed,
        means=evaluation.means,
        intervals={name: interval(values, keys) for name, values in evaluation.table.raw.items()},
        time=datetime.now(UTC).isoformat(timespec="seconds"),
        variety=variety,
    )


def interval(values: Tensor, prompts: Sequence[Hashable]) -> tuple[float, float] | None:
    """Return the 95 % interval of the mean over prompts: Student's, of `statistics.clustered_estimate`.

    Where every value is 0, or every one 1, that would have no width: there it is Wilson's (JASA 22, 1927) of as many
    shares as there are prompts.

    Args:
        values: (S,); NaN are left out.
        prompts: (S,) what tells each one's prompt: samples of one may go together in any way.

    Returns:
        Its ends; None of fewer than two prompts.
    """
    known = [(value, prompt) for value, prompt in zip(values.tolist(), prompts, strict=True) if math.isfinite(value)]
    if not known:
        return None
    estimate = clustered_estimate(*zip(*known, strict=True))
    if estimate.low is None or estimate.high is None:
        return None
    if estimate.sd == 0 and estimate.mean in (0.0, 1.0):
        far = Z * Z / (estimate.n + Z * Z)
        return (0.0, far) if estimate.mean == 0 else (1.0 - far, 1.0)
    return estimate.low, estimate.high


def digest(weights: Mapping[str, Tensor]) -> str:
    """Return the sha256 of named tensors: names, types, shapes and bytes, in the order of the names."""
    whole = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        whole.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        whole.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return whole.hexdigest()


def table_of(rows: Sequence[Measured]) -> Table:
    """Return one line a row: mean and interval of each reward.

    Args:
        rows: at least one, of the same prompts, steps and noise.
    """
    first = rows[0]
    names = dict.fromkeys(name for row in rows for name in row.intervals)
    varied = dict.fromkeys(name for row in rows for name in row.variety or ())
    cells = [
        {
            "weights": row.weights,
            "iteration": NOTHING if row.iteration is None else str(row.iteration),
            "guidance": f"{row.guidance_scale:g}",
            "n": str(row.n),
            **{name: _cell(row.means.get(name), row.intervals.get(name)) for name in names},
            **{name: _cell((row.variety or {}).get(name), None) for name in varied},
        }
        for row in rows
    ]
    title = f"{first.prompts}, {first.steps} steps, noise of seed {first.noise_seed}"
    return console_table(title, cells, caption="mean and its 95 % interval")


def _cell(mean: float | None, ends: tuple[float, float] | None) -> str:
    number = plus_minus(mean, None)
    return number if ends is None else f"{number}\n{ends[0]:.3f} to {ends[1]:.3f}"
