"""Images to a `RewardTable`: every configured scorer, scaled and summed, raw values kept."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from diffrl import pulse
from diffrl.data.sources import read_source
from diffrl.errors import GuardStop, SourceError
from diffrl.functional.combine import scaled_reward
from diffrl.records import Prompt, RewardTable
from diffrl.rewards.lanes import Lane, OverdueError, Pending, alarm
from reward_models import RewardBatch, RewardOutput, Scorer
from reward_models.asking import ask
from reward_models.base import output_of_pieces
from reward_models.media import batches_of

LARGEST = 1e12
"""Size of a score, or of a total, beyond which it is a failure: next to it float32 could not tell others apart."""


@dataclass(frozen=True)
class WeightedScorer:
    """A scorer and what its score is worth, see `functional.combine`.

    Args:
        name: what it is called in tables.
        scorer: the reward model.
        weight: factor in the total; 0 only watches.
        shift: subtracted from raw scores.
        scale: divides them then.
        batch_size: samples a call; a scorer of groups gets whole groups.
        fps: frames per second of the videos it is given.
        lane: where it is computed; None = by whoever asks for the table, then.
        timeout: seconds that a call may take; None = as long as it takes.
    """

    name: str
    scorer: Scorer
    weight: float = 1.0
    shift: float = 0.0
    scale: float = 1.0
    batch_size: int = 256
    fps: float | None = None
    lane: Lane | None = None
    timeout: float | None = None

    def share(self, raw: Tensor) -> Tensor:
        """Return what raw scores add to the total."""
        return scaled_reward(raw, self.shift, self.scale, self.weight)


@dataclass
class _Stream:
    """One scorer's part of the work: the rows of each of its batches, and those batches that are under way."""

    weighted: WeightedScorer
    pieces: Sequence[Sequence[int]]
    pending: list[Pending[RewardOutput]] = field(default_factory=list)

    @property
    def ahead(self) -> Sequence[Sequence[int]]:
        """Batches whose images have not all come."""
        return self.pieces[len(self.pending) :]


class Scoring:
    """Scores samples as their images come, and gives the table in their order.

    Batches are cut at the same rows whatever the pieces in which images come, so the table does not depend on them.

    Args:
        scorers: at least one.
        prompts: S prompts, in the order in which images will come.
        groups: S group ids; empty: equal prompts are a group.
    """

    def __init__(self, scorers: Sequence[WeightedScorer], prompts: Sequence[Prompt], groups: Sequence[int] = ()):
        if not groups and any(prompt.source is not None for prompt in prompts):  # where words alone are not the prompt
            places = {key: number for number, key in enumerate(dict.fromkeys(prompt.key for prompt in prompts))}
            groups = [places[prompt.key] for prompt in prompts]
        self._prompts, self._groups, self._seen = prompts, groups, 0
        self._pictures: dict[int, Tensor] = {}  # first row -> images that some scorer still waits for
        keys = list(groups) if groups else [prompt.text for prompt in prompts]
        self._streams = [
            _Stream(s, batches_of(range(len(prompts)), s.batch_size, keys if s.scorer.spec.scope == "group" else ()))
            for s in scorers
        ]

    def add(self, images: Tensor) -> None:
        """Receive the next images, (B, 3, H, W) or (B, F, 3, H, W) uint8; returns at once where scorers have lanes."""
        self._pictures[self._seen] = images
        self._seen += len(images)
        for stream in self._streams:
            while stream.ahead and max(stream.ahead[0]) < self._seen:
                self._submit(stream, stream.ahead[0])
        needed = min((min(map(min, stream.ahead)) for stream in self._streams if stream.ahead), default=self._seen)
        self._pictures = {row: part for row, part in self._pictures.items() if row + len(part) > needed}

    def _media(self, rows: Sequence[int]) -> Tensor:
        """Return images of these rows; a view where they came together, so that several scorers share them."""
        for first, part in self._pictures.items():
            if first <= rows[0] and rows[-1] < first + len(part) and list(rows) == list(range(rows[0], rows[-1] + 1)):
                return part[rows[0] - first : rows[-1] + 1 - first]
        image_of = {first + i: part[i] for first, part in self._pictures.items() for i in range(len(part))}
        return torch.stack([image_of[row] for row in rows])

    def _sources(self, rows: Sequence[int]) -> dict[int, Tensor | str]:
        """Return the images that samples are edits of, by row, each read once a batch; of one that is gone, why."""
        named = {row: path for row in rows if (path := self._prompts[row].source) is not None}
        read: dict[str, Tensor | str] = {}
        for path in dict.fromkeys(named.values()):
            try:
                read[path] = read_source(path)
            except SourceError as error:
                read[path] = str(error)
        return {row: read[path] for row, path in named.items()}

    def _submit(self, stream: _Stream, rows: Sequence[int]) -> None:
        weighted = stream.weighted
        sources = self._sources(rows) if weighted.scorer.spec.uses_source else {}
        failed = {row: why for row, why in sources.items() if isinstance(why, str)}
        able = [row for row in rows if row not in failed]
        originals = [source for row in able if isinstance(source := sources.get(row), Tensor)]

        batch = RewardBatch(
            self._media(able or rows),
            [self._prompts[row].text for row in able or rows],
            [self._prompts[row].metadata for row in able or rows],
            weighted.fps,
            [self._groups[row] for row in able or rows] if self._groups else (),
            originals if len(originals) == len(able) else (),
        )

        def work() -> RewardOutput:
            output = ask(weighted.scorer, batch, weighted.name) if able else None
            if output is not None and not failed:
                return output
            places = [at for at, row in enumerate(rows) if row not in failed]
            whys = {at: failed[row] for at, row in enumerate(rows) if row in failed}
            return output_of_pieces([] if output is None else [(places, output)], len(rows), whys)

        lane = weighted.lane
        stream.pending.append(Pending(work) if lane is None else lane.submit(work, weighted.name, weighted.timeout))

    def table(self) -> RewardTable:
        """Wait for all scores.

        Returns:
            The table. A sample that a scorer with a weight failed on, or whose total is beyond `LARGEST`, has
            `ok = False`, a NaN total and the first message.

        Raises:
            GuardStop: a scorer took longer than it may.
            RewardError: a scorer cannot work on these samples.
        """
        assert self._seen == len(self._prompts), "all images must have come"
        count = len(self._prompts)
        total, ok = torch.zeros(count), torch.ones(count, dtype=torch.bool)
        errors: list[str | None] = [None] * count
        raw: dict[str, Tensor] = {}
        parts: dict[str, Tensor] = {}
        notes: dict[str, list[str | None]] = {}
        for stream in self._streams:
            weighted = stream.weighted
            outputs = []
            for pending, piece in zip(stream.pending, stream.pieces, strict=True):
                outputs.append(_wait(weighted, pending))
                pulse.advance(pulse.SCORED, len(piece))
            joined = _joined(outputs, stream.pieces)
            if joined.notes:
                notes[weighted.name] = list(joined.notes)
            raw[weighted.name] = joined.raw
            parts.update({f"{weighted.name}/{part}": tensor for part, tensor in joined.parts.items()})
            if weighted.weight == 0:  # only watched: samples that it fails on are no worse for it
                continue
            total = total + weighted.share(joined.raw)
            ok &= joined.ok
            errors = [
                old or (f"{weighted.name}: {new}" if new else None)
                for old, new in zip(errors, joined.errors, strict=True)
            ]
        sound = total.abs() <= LARGEST
        for row in torch.nonzero(ok & ~sound).flatten().tolist():
            errors[row] = f"the weighted total is {total[row]:g}, which is no reward; weight, shift or scale is wrong"
        ok &= sound
        return RewardTable(raw, parts, torch.where(ok, total, torch.nan), ok, errors, notes)


def score(
    scorers: Sequence[WeightedScorer], images: Tensor, prompts: Sequence[Prompt], groups: Sequence[int] = ()
) -> RewardTable:
    """Score S samples with every scorer.

    Args:
        scorers: at least one.
        images: (S, 3, H, W) or (S, F, 3, H, W) uint8 RGB.
        prompts: S prompts.
        groups: S group ids; empty: equal prompts are a group.

    Returns:
        As `Scoring.table`.
    """
    scoring = Scoring(scorers, prompts, groups)
    scoring.add(images)
    return scoring.table()


def _wait(weighted: WeightedScorer, pending: Pending[RewardOutput]) -> RewardOutput:
    try:
        if weighted.lane is not None:
            return weighted.lane.result(pending)
        with alarm(weighted.name, weighted.timeout):
            pending.run()
        return pending.value()
    except OverdueError as slow:
        raise GuardStop(
            f"The reward {slow.name} has not answered for {slow.limit:g} seconds (rewards.timeout). The run stops; "
            "its last checkpoint is intact."
        ) from None


def _joined(outputs: Sequence[RewardOutput], pieces: Sequence[Sequence[int]]) -> RewardOutput:
    """Join a scorer's batches in the order of the samples; a value that is not finite, or too large, is a failure."""
    joined = output_of_pieces(zip(pieces, outputs, strict=True), sum(map(len, pieces)), {})
    sound = joined.raw.abs() <= LARGEST  # False for NaN
    errors = [
        error or (None if good else f"returned {value:g}")
        for error, good, value in zip(joined.errors, sound.tolist(), joined.raw.tolist(), strict=True)
    ]
    good = joined.ok & sound
    return replace(joined, raw=joined.raw.masked_fill(~good, torch.nan), ok=good, errors=errors)
