"""What is kept of an iteration's first prompts while they are drawn, for the trees that people look at later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from diffrl.config.schema import Config
from diffrl.records import Edges, Forest, Samples
from diffrl.rollout.denoise import Observer
from diffrl.rollout.observers import EdgeRecorder, PredictionRecorder
from diffrl.rollout.regenerate import Clock, Sink, no_clock
from diffrl.trees.illustrations import illustration, most


@dataclass(frozen=True)
class Trace:
    """Of the first prompts of an iteration, what drawing them would else have let go of.

    Args:
        prompts: how many.
        nodes: (M,) int64 nodes of the rollout's forest that belong to them.
        predicted: (M, ...) the image that the network predicted at each of these nodes, as latents.
        edges: their stochastic steps; empty where no step is stochastic.
        proxies: illustrations of those of their candidates that are kept, by the pool's sample.
    """

    prompts: int
    nodes: Tensor
    predicted: Tensor
    edges: Edges
    proxies: Mapping[int, Tensor]


class Tracer:
    """Observes the drawing of an iteration's first prompts; it changes nothing of it.

    Which candidates are kept is known only when all are drawn and chosen from; until then small copies of the first
    prompts' images are held.

    Args:
        prompts: how many.
        images: track.trees.pictures, candidates' images that a tree keeps.
        clock: entered with "trees" while it makes illustrations, within whatever phase the images come from.
    """

    def __init__(self, prompts: int, images: int | None, clock: Clock = no_clock):
        self.prompts, self._asked, self._clock = prompts, images, clock
        self._edges: EdgeRecorder | None = None
        self._predicted: PredictionRecorder | None = None
        self._held = list[Tensor]()

    def observers(self, forest: Forest) -> list[Observer]:
        """Return the observers of every level while the forest is sampled."""
        self._edges = EdgeRecorder(forest, prompts=self.prompts)
        self._predicted = PredictionRecorder(forest, self.prompts)
        return [self._edges, self._predicted]

    def candidates(self, pool: Forest) -> Sink:
        """Return what is to be given the images of a pool, in the order of its samples."""
        count = 0 if self._asked == 0 else int((pool.sample_prompt < self.prompts).sum())

        def take(images: Tensor) -> None:
            if len(self._held) < count:
                with self._clock("trees"):  # a view would hold the whole batch
                    self._held += [illustration(image).clone() for image in images[: count - len(self._held)]]

        return take

    def trace(self, samples: Samples) -> Trace:
        """Return what was seen, once all is drawn."""
        assert self._predicted is not None and self._edges is not None
        proxies = self._proxies(samples)
        return Trace(self.prompts, self._predicted.nodes, self._predicted.latents, self._edges.edges(), proxies)

    def _proxies(self, samples: Samples) -> dict[int, Tensor]:
        """Return candidates' images by the pool's sample: so many of each prompt, those generated again first."""
        if samples.exploration is None or samples.chosen is None:
            return {}
        again, kept = set(samples.chosen.samples.tolist()), dict[int, Tensor]()
        prompts = samples.exploration.forest.sample_prompt[: len(self._held)].tolist()
        for prompt in dict.fromkeys(prompts):
            of_prompt = [sample for sample, other in enumerate(prompts) if other == prompt]
            first = sorted(of_prompt, key=lambda sample: sample not in again)
            kept |= {sample: self._held[sample] for sample in first[: most(self._asked, self._held[0])]}
        return kept


def keeps_trees(config: Config, iteration: int) -> bool:
    """Return whether trees of a training iteration, from 0, are kept: of the first, of every n-th and of the last."""
    trees, run = config.track.trees, config.run
    if trees is None or config.objective.trains_pairs:
        return False
    every = run.eval_every if trees.every is None else trees.every
    return iteration in (0, run.iterations - 1) or (every is not None and iteration % every == 0)
