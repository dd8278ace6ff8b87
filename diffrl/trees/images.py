"""The images of a tree: which are kept, the predicted ones decoded, all of them as illustrations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from diffrl.models.adapter import ModelAdapter
from diffrl.models.images import BrokenPictureError
from diffrl.models.pipeline import keep_on_device
from diffrl.trees.document import Sketch
from diffrl.trees.illustrations import illustration, most, pace
from diffrl.trees.record import EFFECT_IMAGES, TreeRecord, effect_image, node_image, proxy_image
from diffrl.trees.tracing import Trace
from diffrl.trees.update_effects import UpdateEffects


@dataclass(frozen=True)
class KeptTree:
    """A tree with its images.

    Args:
        record: the document.
        images: the files that it names, uint8 (3, H, W) or (F, 3, H, W).
        pace: the share of their frames that clips keep.
    """

    record: TreeRecord
    images: Mapping[str, Tensor]
    pace: float = 1.0


def with_images(
    sketch: Sketch,
    trace: Trace,
    images: Tensor,
    adapter: ModelAdapter,
    decode_batch: int,
    asked: int | None,
    effects: UpdateEffects | None = None,
) -> KeptTree:
    """Add illustrations: of all finished samples, of what was predicted at inner nodes, of splits, of candidates.

    Args:
        sketch: the tree.
        trace: what was seen of the iteration's first prompts.
        images: (S, 3, H, W) or (S, F, 3, H, W) uint8, all samples of the iteration.
        adapter: decodes the predicted ones.
        decode_batch: images a decoder call.
        asked: track.trees.pictures, how many of inner nodes, in the order of `most_telling`.
        effects: of splits that train; each has three images beside the node's own.
    """
    record = sketch.record
    files = {node_image(i): illustration(images[row]) for i, row in enumerate(sketch.sample) if row >= 0}
    inner, splits = _affordable(sketch, effects, most(asked, images[0]))
    rows = torch.searchsorted(trace.nodes, torch.tensor([sketch.node[i] for i in inner], dtype=torch.int64))
    with keep_on_device(adapter, "vae"):  # it travels once for all calls
        decoded = decode_whole(adapter, trace.predicted[rows.to(trace.predicted.device)], decode_batch)
        files |= {node_image(i): image for i, image in zip(inner, decoded, strict=True) if image is not None}
        for row, i in splits.items():
            assert effects is not None
            shown = decode_whole(adapter, effects.predictions(row), decode_batch)
            named = zip((effect_image(which, i) for which in EFFECT_IMAGES), shown, strict=True)
            files |= {name: image for name, image in named if image is not None}
    proxies = ((i, trace.proxies.get(sample)) for i, sample in enumerate(sketch.candidate))
    files |= {proxy_image(i): proxy for i, proxy in proxies if proxy is not None}
    nodes = []
    for node in record.nodes:
        image, proxy = node_image(node.id), proxy_image(node.id)
        leaf = node.leaf and replace(node.leaf, proxy_picture=proxy if proxy in files else None)
        kept = {which: name for which in EFFECT_IMAGES if (name := effect_image(which, node.id)) in files}
        effect = node.update_effect and replace(node.update_effect, **kept)
        nodes.append(replace(node, picture=image if image in files else None, leaf=leaf, update_effect=effect))
    return KeptTree(replace(record, nodes=nodes), files, pace(images[0]))


def _affordable(sketch: Sketch, effects: UpdateEffects | None, left: int) -> tuple[list[int], dict[int, int]]:
    """Return inner nodes whose images are kept, and the row in `effects` and node of splits whose three are."""
    inner, splits = list[int](), dict[int, int]()
    for i in most_telling(sketch.record):
        if left < 1:
            break
        inner.append(i)
        left -= 1
        row = effects.row_of(sketch.node[i]) if effects is not None else None
        if row is not None and left >= len(EFFECT_IMAGES):
            splits[row] = i
            left -= len(EFFECT_IMAGES)
    return inner, splits


def most_telling(record: TreeRecord) -> list[int]:
    """Return inner nodes that were sampled, those first whose images tell most.

    That is the path to the best sample, then to the worst, the second best, and so on; last, in the order of the nodes,
    what leads to no scored sample.
    """
    scored = [(node.leaf.total, node) for node in record.nodes if node.leaf and node.leaf.total is not None]
    ranked = [node for _, node in sorted(scored, key=lambda pair: -pair[0])]
    order: dict[int, None] = {}
    for turn in range(len(ranked)):
        above = ranked.pop(0 if turn % 2 == 0 else -1).parent
        path: list[int] = []
        while above is not None:
            path.append(above)
            above = record.nodes[above].parent
        order |= dict.fromkeys(reversed(path))
    inner = {node.parent for node in record.nodes if node.parent is not None and node.sampled}
    return [*order, *sorted(inner - order.keys())]


@torch.no_grad()
def decode_whole(adapter: ModelAdapter, latents: Tensor, decode_batch: int) -> list[Tensor | None]:
    """Return illustrations, uint8; None where the decoder breaks: what nobody trains on must not end a run."""
    images: list[Tensor | None] = []
    for piece in latents.split(decode_batch) if len(latents) else ():
        rows = list(range(len(piece)))
        decoded: dict[int, Tensor] = {}
        while rows and not decoded:
            try:
                decoded = dict(zip(rows, map(illustration, adapter.decode(piece[rows])), strict=True))
            except BrokenPictureError as error:
                rows = [row for i, row in enumerate(rows) if i not in set(error.rows)]
        images += [decoded.get(row) for row in range(len(piece))]
    return images
