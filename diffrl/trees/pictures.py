"""The pictures of a tree: which are kept, the predicted ones decoded, all of them as illustrations."""

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
from diffrl.trees.record import EFFECT_IMAGES, TreeRecord, effect_image, node_picture, proxy_picture
from diffrl.trees.tracing import Trace
from diffrl.trees.update_effects import UpdateEffects


@dataclass(frozen=True)
class KeptTree:
    """A tree with its pictures.

    Args:
        record: the document.
        pictures: the files that it names, uint8 (3, H, W) or (F, 3, H, W).
        pace: the share of their frames that clips keep.
    """

    record: TreeRecord
    pictures: Mapping[str, Tensor]
    pace: float = 1.0


def with_pictures(
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
        decode_batch: pictures a decoder call.
        asked: track.trees.pictures, how many of inner nodes, in the order of `pictured`.
        effects: of splits that train; each has three pictures beside the node's own.
    """
    record = sketch.record
    pictures = {node_picture(i): illustration(images[own]) for i, own in enumerate(sketch.sample) if own >= 0}
    inner, splits = _affordable(sketch, effects, most(asked, images[0]))
    rows = torch.searchsorted(trace.nodes, torch.tensor([sketch.node[i] for i in inner], dtype=torch.int64))
    with keep_on_device(adapter, "vae"):  # it travels once for all calls
        decoded = decode_whole(adapter, trace.predicted[rows.to(trace.predicted.device)], decode_batch)
        pictures |= {node_picture(i): image for i, image in zip(inner, decoded, strict=True) if image is not None}
        for row, i in splits.items():
            assert effects is not None
            shown = decode_whole(adapter, effects.predictions(row), decode_batch)
            named = zip((effect_image(which, i) for which in EFFECT_IMAGES), shown, strict=True)
            pictures |= {name: image for name, image in named if image is not None}
    proxies = ((i, trace.proxies.get(place)) for i, place in enumerate(sketch.candidate))
    pictures |= {proxy_picture(i): proxy for i, proxy in proxies if proxy is not None}
    nodes = []
    for node in record.nodes:
        own, proxy = node_picture(node.id), proxy_picture(node.id)
        leaf = node.leaf and replace(node.leaf, proxy_picture=proxy if proxy in pictures else None)
        kept = {which: name for which in EFFECT_IMAGES if (name := effect_image(which, node.id)) in pictures}
        effect = node.update_effect and replace(node.update_effect, **kept)
        nodes.append(replace(node, picture=own if own in pictures else None, leaf=leaf, update_effect=effect))
    return KeptTree(replace(record, nodes=nodes), pictures, pace(images[0]))


def _affordable(sketch: Sketch, effects: UpdateEffects | None, left: int) -> tuple[list[int], dict[int, int]]:
    """Inner nodes whose pictures are kept, and of splits whose three are kept the row in `effects` and the node."""
    inner, splits = list[int](), dict[int, int]()
    for i in pictured(sketch.record):
        if left < 1:
            break
        inner.append(i)
        left -= 1
        row = effects.pictured(sketch.node[i]) if effects is not None else None
        if row is not None and left >= len(EFFECT_IMAGES):
            splits[row] = i
            left -= len(EFFECT_IMAGES)
    return inner, splits


def pictured(record: TreeRecord) -> list[int]:
    """Return inner nodes that were drawn, those first whose pictures tell most.

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
    """Illustrations, uint8 on the CPU; None where the decoder breaks: what nobody trains on must not end a run."""
    pictures: list[Tensor | None] = []
    for piece in latents.split(decode_batch) if len(latents) else ():
        rows = list(range(len(piece)))
        found: dict[int, Tensor] = {}
        while rows and not found:
            try:
                found = dict(zip(rows, map(illustration, adapter.decode(piece[rows])), strict=True))
            except BrokenPictureError as error:
                rows = [row for place, row in enumerate(rows) if place not in set(error.rows)]
        pictures += [found.get(row) for row in range(len(piece))]
    return pictures
