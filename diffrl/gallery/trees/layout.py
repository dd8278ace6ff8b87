"""Where the nodes of a tree stand: noise on the left, finished images on the right, nothing on top of anything else.

All lengths are pixels at full size; the page scales them. A node's place is the centre of its image; its box is all
that it shows: the image, the chip with its advantage on the left, the words below or beside it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from diffrl.gallery.trees.numbers import known, level
from diffrl.trees.record import TreeNode, TreeRecord

THUMB, PROXY, SMALL, DOT = 64.0, 44.0, 30.0, 14.0
LARGE = 144.0
"""Largest image of an inner node: these have room, between the leaves that grow from them."""
CAPTION, WORDS, SMALL_WORDS, BETWEEN = 18.0, 128.0, 46.0, 8.0
CHIP = 62.0
HEAD, MARGIN = 62.0, 14.0
SHAPE = 1.1
"""Wanted width of a tree by its height."""
WIDER = 1.5
"""Most room between columns, by the least; pages draw them further apart where they have room."""
UNDER = 0.4
"""Where in its parent's image, which covers it, a line begins: drawn up to 1 / 0.4 as wide, it still does."""
FEW, SOME = 3, 5
"""Most steps of a path at which there is room for long words above the first column, and for two lines above all."""
WIDE = 1000.0
"""How wide a tree without steps, a mere pool, is laid out."""


@dataclass(frozen=True)
class Place:
    """Where a node stands.

    Args:
        node: its id.
        x: left edge of its image.
        y: centre of its image.
        size: edge of its image.
        box: left, top, right, bottom of all that it shows.
    """

    node: int
    x: float
    y: float
    size: float
    box: tuple[float, float, float, float]


@dataclass(frozen=True)
class Edge:
    """The line of a step, from below the parent's image to the left of the child's; an SVG path."""

    node: int
    path: str


@dataclass(frozen=True)
class Caption:
    """Words above a column, or above a part of a pool; those of the last column end at the right edge."""

    x: float
    y: float
    title: str
    note: str
    last: bool = False


@dataclass(frozen=True)
class Layout:
    """A tree that can be drawn.

    Args:
        width: of all.
        height: of all.
        places: of the nodes.
        edges: lines; each begins below its parent's image, so that columns can be drawn further apart.
        captions: above the columns.
        tail: what the last column takes of the width; the columns before it may be drawn further apart.
        columns: left edge and widest image of each column: how near to each other they may be drawn.
    """

    width: float
    height: float
    places: Sequence[Place]
    edges: Sequence[Edge]
    captions: Sequence[Caption]
    tail: float
    columns: Sequence[tuple[float, float]] = ()


def lay_out(record: TreeRecord, drawn_only: bool = False) -> Layout:
    """Columns by noise level, leaves stacked, parents centred on their children; a pool without steps in rows.

    Args:
        record: the tree.
        drawn_only: leave out what was only explored.

    Returns:
        Layout with a place for each node that is shown, in the order of the nodes.
    """
    nodes = [node for node in record.nodes if node.drawn or not drawn_only]
    if all(node.parent is None for node in nodes):
        return _pool(record, nodes)
    return _tree(record, nodes)


def extent(node: TreeNode, proxies: bool, inner: float = THUMB) -> tuple[float, float, float, float]:
    """Image size, and the room taken left of the image, right of the image's left edge, and up or down.

    Args:
        node: which.
        proxies: whether leaves leave room for the exploring precision's image.
        inner: size of the image if it is that of an inner node.
    """
    chip = CHIP if node.parent is not None and node.drawn else 0.0
    if node.leaf is None:
        size = inner if node.drawn else DOT
        return size, chip, size, size / 2 + (CAPTION if node.drawn else 0.0)
    if not node.drawn:
        return SMALL, chip, SMALL + SMALL_WORDS, SMALL / 2
    return THUMB, chip, THUMB + (PROXY + 6 if proxies else 0.0) + WORDS, THUMB / 2


def _tree(record: TreeRecord, nodes: Sequence[TreeNode]) -> Layout:
    proxies = any(node.drawn and node.leaf is not None and node.leaf.proxy_picture for node in nodes)
    depth = _depths(record.nodes)
    columns = sorted({depth[node.id] for node in nodes})
    middle, room = _stack(nodes, {node.id: 2 * extent(node, proxies)[3] for node in nodes})
    inner = [_inner([room[n.id] for n in nodes if n.drawn and depth[n.id] == column]) for column in columns]
    sizes = {node.id: extent(node, proxies, inner[depth[node.id]]) for node in nodes}
    wide = [max(sizes[node.id][2] for node in nodes if depth[node.id] == column) for column in columns]
    gap = _gap(sum(wide), max(middle.values()), len(columns))
    left = {column: MARGIN + column * gap + sum(wide[:column]) for column in columns}
    places = {
        node.id: _place(node.id, left[depth[node.id]], HEAD + MARGIN + middle[node.id], sizes[node.id])
        for node in nodes
    }
    edges = [Edge(node.id, _curve(places[node.parent], places[node.id])) for node in nodes if node.parent in places]
    captions = [
        Caption(left[column], 0.0, *_heading(record, nodes, depth, column), last=0 < column == columns[-1])
        for column in columns
    ]
    right = max(max(place.box[2] for place in places.values()), max(caption.x for caption in captions) + 120) + MARGIN
    bottom = max(place.box[3] for place in places.values())
    shown = [places[node.id] for node in nodes]
    across = [(left[c], max(sizes[node.id][0] for node in nodes if depth[node.id] == c)) for c in columns]
    return Layout(right, bottom + MARGIN, shown, edges, captions, right - left[columns[-1]], across)


def _inner(rooms: Sequence[float]) -> float:
    """Size of the images of a column's inner nodes, all alike, by the room above and below each of them."""
    return max(THUMB, min(LARGE, *(2 * (room - CAPTION) - BETWEEN for room in rooms)) if rooms else THUMB)


def _gap(wide: float, tall: float, columns: int) -> float:
    """Room between columns: as little as a chip needs with many of them, more of it beside many leaves."""
    least = 132.0 if columns <= 4 else 96.0 if columns <= 8 else CHIP + 22.0
    return min(max(least, (SHAPE * tall - wide) / (columns - 1)), WIDER * least)


def _place(node: int, x: float, y: float, extent: tuple[float, float, float, float]) -> Place:
    size, before, after, half = extent
    return Place(node, x, y, size, (x - before, y - half, x + after, y + half))


def _depths(nodes: Sequence[TreeNode]) -> list[int]:
    found: list[int] = []
    for node in nodes:
        found.append(0 if node.parent is None else found[node.parent] + 1)
    return found


def _stack(nodes: Sequence[TreeNode], tall: dict[int, float]) -> tuple[dict[int, float], dict[int, float]]:
    """Centres, so that every node keeps to a slot as tall as itself or as all that grows from it; and its room."""
    shown = {node.id for node in nodes}
    children: dict[int | None, list[int]] = {}
    for node in nodes:
        children.setdefault(node.parent if node.parent in shown else None, []).append(node.id)
    slot: dict[int, float] = {}
    for node in reversed(nodes):
        slot[node.id] = max(tall[node.id] + BETWEEN, sum(slot[child] for child in children.get(node.id, ())))
    top: dict[int, float] = {}
    start = 0.0
    for root in children.get(None, ()):
        top[root], start = start, start + slot[root]
    for node in nodes:
        below = children.get(node.id, [])
        start = top[node.id] + (slot[node.id] - sum(slot[child] for child in below)) / 2
        for child in below:
            top[child], start = start, start + slot[child]
    middle: dict[int, float] = {}
    for node in reversed(nodes):
        room = (slot[node.id] - tall[node.id]) / 2
        centre = top[node.id] + slot[node.id] / 2
        if below := children.get(node.id, []):
            wanted = (middle[below[0]] + middle[below[-1]]) / 2
            centre = min(max(wanted, centre - room), centre + room)
        middle[node.id] = centre
    ends = {key: (centre - top[key], top[key] + slot[key] - centre) for key, centre in middle.items()}
    return middle, {key: min(both) for key, both in ends.items()}


def _curve(parent: Place, child: Place) -> str:
    start, end = parent.x + UNDER * parent.size, child.x
    bend = (end - start) * 0.45
    return (
        f"M{start:.1f} {parent.y:.1f}C{start + bend:.1f} {parent.y:.1f} {end - bend:.1f} {child.y:.1f} "
        f"{end:.1f} {child.y:.1f}"
    )


def deep(nodes: Sequence[TreeNode]) -> bool:
    """Whether there are so many columns that there is no room for long words above them."""
    return max(_depths(nodes), default=0) > FEW


def _heading(record: TreeRecord, nodes: Sequence[TreeNode], depth: Sequence[int], column: int) -> tuple[str, str]:
    here = [node for node in nodes if depth[node.id] == column]
    steps = len(record.sigmas) - 1
    sigma, step = here[0].sigma, here[0].step
    many = max(depth) > SOME
    when = "starting noise" if deep(record.nodes) else "what is predicted from starting noise"
    if step is not None:
        what = "split" if record.branching.get(step, 1) > 1 else "noise"
        when = f"{what} at {level(record.sigmas[step])}, step {step + 1} of {steps}"
    if all(node.leaf is not None for node in here):
        return "finished images", when
    if many:
        return f"noise {level(sigma)}", when if step is None else ""
    return f"noise level {level(sigma)}", when


def _pool(record: TreeRecord, nodes: Sequence[TreeNode]) -> Layout:
    """Rows of candidates: first what was drawn in the training precision, best first, then the rest, best first."""
    proxies = any(node.drawn and node.leaf is not None and node.leaf.proxy_picture for node in nodes)
    drawn = sorted((node for node in nodes if node.drawn), key=lambda node: -_worth(node, "total"))
    rest = sorted((node for node in nodes if not node.drawn), key=lambda node: -_worth(node, "proxy"))
    places: list[Place] = []
    captions: list[Caption] = []
    y = 0.0
    titles = ("generated again" if rest or record.explored else "finished images", "only explored")
    for part, title in zip((drawn, rest), titles, strict=True):
        if not part:
            continue
        order = "best reward first" if part is drawn else "best proxy reward first"
        captions.append(Caption(MARGIN, y, title, order))
        y += HEAD
        sizes = [extent(node, proxies) for node in part]
        wide, tall = max(size[2] for size in sizes) + BETWEEN, 2 * max(size[3] for size in sizes) + BETWEEN
        columns = max(1, min(len(part), int(WIDE // wide)))
        for place, node in enumerate(part):
            row, column = divmod(place, columns)
            places.append(_place(node.id, MARGIN + column * wide, y + (row + 0.5) * tall, extent(node, proxies)))
        y += -(-len(part) // columns) * tall + MARGIN
    right = max((place.box[2] for place in places), default=0.0)
    width = max(right, 220.0) + MARGIN
    return Layout(width, max(y, HEAD), sorted(places, key=lambda place: place.node), [], captions, width)


def _worth(node: TreeNode, name: str) -> float:
    value = getattr(node.leaf, name) if node.leaf is not None else None
    return float(value) if value is not None and known(value) else -float("inf")
