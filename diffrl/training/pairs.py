"""Given images in the place of a rollout: pairs of which one was preferred, read, encoded, and judged when held out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from diffrl.data.sources import MOST_READ, require_ratio
from diffrl.errors import ConfigError, SourceError
from diffrl.models.adapter import Conditioning
from diffrl.models.pipeline import PipelineAdapter, keep_on_device
from diffrl.objectives.dpo import DPO, accuracy
from diffrl.records import Credit, Edges, Prompt, PromptBatch, RewardTable, Rollout, Samples
from diffrl.rollout.denoise import velocity_of
from diffrl.rollout.tree import plan_forest
from diffrl.sections import MOST_ITERATIONS
from diffrl.training.session import Session
from diffrl.training.update import reference_of
from reward_models.common.errors import RewardError
from reward_models.common.messages import quote
from reward_models.media import from_pil, open_media, to_pil


def given_samples(session: Session, batch: PromptBatch) -> Samples:
    """Return a batch's pairs as samples, the winner first.

    Raises:
        SourceError: an image cannot be read any more, or has another size.
    """
    adapter = session.adapter
    assert isinstance(adapter, PipelineAdapter)
    forest = plan_forest(len(batch.prompts), 2, {})
    pairs = [prompt.pair for prompt in batch.prompts]
    images = [read_media(path, adapter) for pair in pairs if pair is not None for path in pair.files]
    with keep_on_device(adapter, "vae"):  # one at a time, so that no image depends on those beside it
        latents = torch.cat([adapter.encode_media(image.unsqueeze(0)) for image in images])
    won = torch.tensor([1.0, 0.0]).repeat(len(batch.prompts))
    table = RewardTable({"preferred": won}, {}, won, torch.ones(len(won), dtype=torch.bool), [None] * len(won))
    rollout = Rollout(batch, forest, session.sigmas, latents, torch.stack(images), _no_steps(latents))
    return Samples(rollout, table)


def _no_steps(like: Tensor) -> Edges:
    """Return the recorded steps of images that nobody drew."""
    rows, numbers = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    return Edges(
        stored=like[:0],
        before=rows,
        sigma=numbers,
        sigma_next=numbers,
        step=rows,
        prompt=rows,
        origin=rows,
        node=rows,
        after=rows,
        old_log_prob=numbers,
    )


def pair_credit(samples: Samples) -> Credit:
    """Return what images deserve: a pair's weight for its winner, and the same below 0 for its loser."""
    forest, prompts = samples.rollout.forest, samples.rollout.batch.prompts
    weight = torch.tensor([prompt.pair.weight for prompt in prompts if prompt.pair is not None])
    outcome = torch.stack([weight, -weight], dim=1).flatten()
    nodes = torch.zeros(len(forest.parent))
    return Credit(
        advantage=nodes,
        outcome=outcome,
        used=torch.ones(len(outcome), dtype=torch.bool),
        values=samples.table.total,
        step_reward=torch.full_like(nodes, torch.nan),
        turning=torch.zeros(len(nodes), dtype=torch.bool),
        zero_spread_groups=0,
        dropped_groups=0,
    )


def read_media(path: str, adapter: PipelineAdapter) -> Tensor:
    """Read an image (3, H, W), or a clip (F, 3, H, W), uint8, scaled to the size that is drawn.

    Raises:
        SourceError: it cannot be read, is of another kind, or would be distorted.
    """
    from PIL import Image

    try:
        media, _ = open_media(path)
        size = adapter.height, adapter.width
        require_ratio((media.shape[-2], media.shape[-1]), size, quote(path))
    except (RewardError, ConfigError) as error:
        raise SourceError(f"An image of a pair cannot be used. {error}") from error
    moves, frames = adapter.family.media == "video", getattr(adapter, "frames", None)
    if (media.ndim == 4) != moves or (moves and len(media) != frames):
        wanted, got = (f"a clip of {frames} frames" if moves else "a still image"), tuple(media.shape)
        raise SourceError(f"A pair of model.family {adapter.family.name} has {wanted}. {quote(path)} has shape {got}.")
    if media.shape[-2:] == size:
        return media
    stills = media if moves else media.unsqueeze(0)
    scaled = [from_pil(to_pil(still).resize(size[::-1], Image.Resampling.LANCZOS)) for still in stills]
    return torch.stack(scaled) if moves else scaled[0]


def read_pairs(adapter: object, lists: Mapping[str, Sequence[Prompt]]) -> None:
    """Read files of pairs as training will, to see that it can; of more than `MOST_READ` of a list evenly spaced ones.

    Args:
        adapter: whose size they must have.
        lists: prompts by their place in the configuration; those without a pair are left out.

    Raises:
        ConfigError: names the first that cannot be used; or the adapter, one of the user's own, encodes no images.
    """
    if not isinstance(adapter, PipelineAdapter):
        raise ConfigError(
            "objective.kind: dpo encodes images, which an adapter of your own has no method for. "
            f"Got {type(adapter).__name__}. Derive it from diffrl.models.pipeline.PipelineAdapter, or choose another "
            "objective."
        )
    for where, prompts in lists.items():
        paths = list(dict.fromkeys(path for prompt in prompts if prompt.pair is not None for path in prompt.pair.files))
        step = max(1, -(-len(paths) // MOST_READ))
        for path in paths[::step]:
            try:
                read_media(path, adapter)
            except SourceError as error:
                raise ConfigError(f"{where}: {error}") from error


def judge_pairs(
    session: Session, prompts: Sequence[Prompt], conditioning: Conditioning, micro_batch: int
) -> Mapping[str, float]:
    """Return how held-out pairs stand under the weights as they are: {} where the list has none, or nothing compares.

    Noise and noise levels are the same every time, those of an iteration that training does not reach. `accuracy` is
    the share of pairs whose winner the policy, more than the reference, prefers by the mean of its margins; a tie, as
    before any update, counts half.

    Args:
        session: the run.
        prompts: held-out ones; those without a pair are left out.
        conditioning: of them, one row each.
        micro_batch: evaluations a call.
    """
    loss, ranks = session.losses[0], session.ranks
    rows = [row for row, prompt in enumerate(prompts) if prompt.pair is not None]
    if not isinstance(loss.objective, DPO) or not rows:
        return {}
    mine = rows[len(rows) * ranks.rank // ranks.world : len(rows) * (ranks.rank + 1) // ranks.world]
    sums = torch.zeros(2, dtype=torch.float64)
    objective = replace(loss.objective, seed=session.config.eval.seed)
    batches = [PromptBatch([prompts[row]], [row], MOST_ITERATIONS) for row in mine]
    pairs = ranks.raise_on_all_ranks(lambda: [given_samples(session, batch) for batch in batches])
    for row, samples in zip(mine, pairs, strict=True):
        here = {name: tensor[row : row + 1] for name, tensor in conditioning.items()}
        predict = velocity_of(session.adapter, here, loss.guidance)
        with torch.no_grad():
            examples = objective.examples(samples.rollout, pair_credit(samples), torch.empty(0), predict, micro_batch)
            margin = objective.margins(examples, predict, reference_of(session.policy, predict), micro_batch).mean()
        sums += torch.stack([accuracy(margin), margin]).double().cpu()
    accurate, margin_sum = (ranks.sum(sums) / len(rows)).tolist()
    return {"accuracy": accurate, "margin": margin_sum}
