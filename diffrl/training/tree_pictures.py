"""The pictures of a tree: which are kept, and the predicted ones decoded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from diffrl.models.adapter import ModelAdapter
from diffrl.models.images import BrokenPictureError
from diffrl.tracking.trees import TreeRecord, node_picture, proxy_picture
from diffrl.training.sampling import Drawn
from diffrl.training.tree_records import Sketch


@dataclass(frozen=True)
class KeptTree:
    """A tree with its pictures.

    Args:
        record: the document.
        pictures: the files that it names, uint8 (3, H, W) or (F, 3, H, W).
    """

    record: TreeRecord
    pictures: Mapping[str, Tensor]


def with_pictures(sketch: Sketch, drawn: Drawn, adapter: ModelAdapter, decode_batch: int, limit: int) -> KeptTree:
    """Add pictures: finished ones of all samples, predicted ones of `limit` inner nodes, proxies of `limit` candidates.

    Args:
        sketch: the tree.
        drawn: what the iteration drew.
        adapter: decodes the predicted ones.
        decode_batch: pictures a decoder call.
        limit: inner nodes, as `pictured` orders them; candidates, those drawn again first.
    """
    record, trace = sketch.record, drawn.trace
    assert trace is not None
    pictures = {node_picture(i): drawn.rollout.images[own] for i, own in enumerate(sketch.sample) if own >= 0}
    inner = pictured(record)[:limit]
    rows = torch.searchsorted(trace.nodes, torch.tensor([sketch.node[i] for i in inner], dtype=torch.int64))
    decoded = decode_whole(adapter, trace.predicted[rows.to(trace.predicted.device)], decode_batch)
    pictures |= {node_picture(i): image for i, image in zip(inner, decoded, strict=True) if image is not None}
    if trace.proxies is not None:
        candidates = [(i, place) for i, place in enumerate(sketch.candidate) if place >= 0]
        candidates.sort(key=lambda pair: sketch.sample[pair[0]] < 0)
        pictures |= {proxy_picture(i): trace.proxies[place] for i, place in candidates[:limit]}
    nodes = []
    for node in record.nodes:
        own, proxy = node_picture(node.id), proxy_picture(node.id)
        leaf = node.leaf and replace(node.leaf, proxy_picture=proxy if proxy in pictures else None)
        nodes.append(replace(node, picture=own if own in pictures else None, leaf=leaf))
    return KeptTree(replace(record, nodes=nodes), pictures)


def pictured(record: TreeRecord) -> list[int]:
    """Inner nodes that were drawn, those first whose pictures tell most.

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
    inner = {node.parent for node in record.nodes if node.parent is not None and node.drawn}
    return [*order, *sorted(inner - order.keys())]


@torch.no_grad()
def decode_whole(adapter: ModelAdapter, latents: Tensor, decode_batch: int) -> list[Tensor | None]:
    """Pictures, uint8 on the CPU; None where the decoder breaks, which what nobody trains on must not end a run for."""
    pictures: list[Tensor | None] = []
    for piece in latents.split(decode_batch) if len(latents) else ():
        rows = list(range(len(piece)))
        found: dict[int, Tensor] = {}
        while rows and not found:
            try:
                found = dict(zip(rows, adapter.decode(piece[rows]).cpu(), strict=True))
            except BrokenPictureError as error:
                rows = [row for place, row in enumerate(rows) if place not in set(error.rows)]
        pictures += [found.get(row) for row in range(len(piece))]
    return pictures
