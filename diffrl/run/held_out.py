"""The samples of a held-out evaluation as a run keeps them: all scores, and the pictures that tell most."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from diffrl.distributed.ranks import Ranks
from diffrl.tracking.index import asked
from diffrl.tracking.pictured import FIRST, most_changed, spread
from diffrl.tracking.store import SampleStore, StoredSample
from diffrl.training.evaluate import Evaluation
from diffrl.trees.illustrations import illustration, pace
from diffrl.trees.write import loses_nothing, save_illustration

Place = tuple[int, int]
"""Group and root of a held-out sample."""


def totals_at_first(store: SampleStore, iteration: int) -> dict[Place, float | None] | None:
    """Return what the samples with a picture scored at the run's first evaluation; None if `iteration` is the first.

    Args:
        store: of the run.
        iteration: of the evaluation that is to be kept.
    """
    first = min(store.iterations("eval") | {iteration})
    if first == iteration:
        return None
    return {(one.group, one.root): one.total for one in store.read(stage="eval", iteration=first) if one.file}


def pictured(
    ranks: Ranks,
    rows: Sequence[StoredSample],
    images: Tensor,
    most: int,
    before: Mapping[Place, float | None] | None,
    fps: float,
) -> list[StoredSample]:
    """Return every rank's samples, with the pictures that are kept; all ranks take part.

    Exact are `most` pictures spread over the first rank's samples, for it alone writes, and those of its samples that
    changed most. Of other ranks' samples, and of all others at the first evaluation, there are illustrations, which
    each rank makes of its own.

    Args:
        ranks: joins the ranks.
        rows: this rank's samples, without pictures.
        images: (S, 3, H, W) or (S, F, 3, H, W) uint8, of them.
        most: track.pictures_per_evaluation.
        before: `totals_at_first`, as the first rank knows it.
        fps: frames per second of clips.
    """
    parts = ranks.gather_objects(list(rows))
    every = [one for part in parts for one in part]
    before = ranks.gather_objects(before)[0]
    standing = set(spread([asked(one.prompt, one.metadata) for one in parts[0]], most))
    exact = set(standing)
    if before is None:
        chosen = spread([asked(one.prompt, one.metadata) for one in every], FIRST if most else 0)
    else:
        chosen = most_changed([one.total for one in every], [before.get((s.group, s.root)) for s in every], most)
        exact |= {number for number in chosen if number < len(parts[0])}
    start = sum(len(part) for part in parts[: ranks.rank])
    mine = [number for number in chosen if number not in exact and 0 <= number - start < len(rows)]
    made = {number: _illustrated(images[number - start], fps) for number in mine}
    small = {number: data for part in ranks.gather_objects(made) for number, data in part.items()}
    if not ranks.is_main:
        return every
    whole = loses_nothing(images.shape[1:])
    kept = []
    for number, one in enumerate(every):
        stands = before is None or number in standing
        if number in exact:
            kept.append(replace(one, picture=images[number], representative=stands))
        else:
            kept.append(replace(one, small=small.get(number), exact=whole, representative=stands))
    return kept


def stored(iteration: int, evaluation: Evaluation, rewards: Sequence[Mapping[str, float]]) -> list[StoredSample]:
    """Return a rank's samples of an evaluation, without pictures."""
    return [
        StoredSample(
            stage="eval",
            iteration=iteration,
            group=address.group,
            root=address.root,
            seed=address.seed,
            prompt=prompt.text,
            metadata=prompt.beside,
            total=float(evaluation.table.total[i]),
            rewards=rewards[i],
            error=evaluation.table.errors[i],
            notes=evaluation.table.notes_of(i),
        )
        for i, (prompt, address) in enumerate(zip(evaluation.prompts, evaluation.addresses, strict=True))
    ]


def show(trackers: Sequence[Any], samples: Sequence[StoredSample], iteration: int) -> None:
    """Give trackers that show images those that are kept of every evaluation, each under a name of its own.

    So a tracker's slider over steps shows the same prompt and noise. Of a clip it is the middle frame.

    Args:
        trackers: that have begun, as accelerate wraps them.
        samples: of the evaluation.
        iteration: its step.
    """
    shown = [one for one in samples if one.picture is not None and one.representative] if trackers else []
    for number, one in enumerate(shown):
        image = one.picture if one.picture.ndim == 3 else one.picture[len(one.picture) // 2]
        array, name = image.permute(1, 2, 0).cpu().numpy(), f"held_out_images/{number:02}"
        scores = ", ".join(f"{reward} {value:.3f}" for reward, value in one.rewards.items())
        for tracker in trackers:
            if tracker.name == "tensorboard":
                tracker.tracker.add_image(name, array, iteration, dataformats="HWC")
                tracker.tracker.add_text(name, f"{one.prompt}\n\n{scores}", iteration)
            elif tracker.name == "swanlab":
                tracker.log_images({name: [array]}, step=iteration)
            elif tracker.name == "clearml":  # which takes one image a name
                tracker.log_images({name: array}, step=iteration)
            elif tracker.name == "wandb":
                import wandb

                tracker.tracker.log({name: wandb.Image(array, caption=f"{one.prompt} | {scores}")}, step=iteration)


def _illustrated(media: Tensor, fps: float) -> bytes:
    """Return a picture or a clip as an illustration of a tree is kept: small, WebP."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "small.webp"
        save_illustration(illustration(media), file, fps * pace(media))
        return file.read_bytes()
