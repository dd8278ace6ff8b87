"""A tree as nested lists that style sheets draw, in the gallery and in a run's report; and what its panel says.

Columns are noise levels, from noise on the left to finished images on the right. Nothing runs in it: static/tree.js
walks the tree that stands in the page, and joins its nodes by curves instead of elbows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from diffrl.gallery.trees.facts import became, describe, sample_facts, split_facts, step_facts, title
from diffrl.gallery.trees.numbers import known, level, push, share, three
from diffrl.gallery.trees.view import TreeView
from diffrl.trees.record import EFFECT_IMAGES, TreeNode

LEVELS = (0.1, 0.5, 1.0)
"""Sizes of advantages at which lines grow wider: the same in every tree, so that trees can be compared."""
ROW, IDLE_ROW, ROOM = 72, 38, 44
"""Heights in pixels of a finished image and of a candidate that was only explored; what words take around a node."""
SMALLEST, LARGEST = 64, 144
"""Edges of inner nodes' images, in pixels at full size: these take the room that their branches leave them."""
ENDS = 5
"""How many images that pull, and how many that push away, a panel shows."""
Address = Callable[[str], str]
"""Where a page finds a file of the tree's folder."""


def tree_figure(view: TreeView, address: Address) -> dict[str, Any]:
    """Return what templates/tree_figure.html draws: nodes depth first, words above the columns, the legend's parts."""
    depth = _depths(view)
    served = _served(view, address)
    order = _order(view)
    pool = all(node.parent is None for node in view.record.nodes)
    return {
        "pool": pool,
        "nodes": [_node(view, node, depth, served) | {"closes": closes} for node, closes in order],
        "heads": [] if pool else _heads(view, depth),
        "sizes": _sizes(view, depth),
        "legend": _legend(view),
    }


def _served(view: TreeView, address: Address) -> dict[str, str]:
    """Return the address of each file: where there is room for some only, they are those of what was sampled."""
    sampled = [node for node in view.record.nodes if node.sampled]
    files = [node.picture for node in sampled]
    for nodes in (sampled, view.record.nodes):
        files += [node.leaf.proxy_picture for node in nodes if node.leaf is not None]
    return {file: address(file) for file in dict.fromkeys(files) if file}


def _depths(view: TreeView) -> list[int]:
    depths: list[int] = []
    for node in view.record.nodes:
        depths.append(0 if node.parent is None else depths[node.parent] + 1)
    return depths


def _order(view: TreeView) -> list[tuple[TreeNode, int]]:
    """Return nodes depth first, each with how many lists end behind it; a pool best first, sampled before explored."""

    def rank(node: TreeNode) -> tuple[bool, float]:
        best = node.leaf and (node.leaf.total if node.sampled else node.leaf.proxy)
        return not node.sampled, -best if best is not None and known(best) else float("inf")

    order: list[tuple[TreeNode, int]] = []
    roots = [view.record.nodes[id] for id in view.children.get(None, ())]
    if all(node.leaf for node in roots):
        roots.sort(key=rank)
    waiting = [(root, 0) for root in reversed(roots)]
    while waiting:
        node, closes = waiting.pop()
        below = view.below(node)
        order.append((node, 0 if below else closes))
        waiting += [(child, closes + 1 if child is below[-1] else 0) for child in reversed(below)]
    return order


def _sizes(view: TreeView, depth: Sequence[int]) -> list[int]:
    """Return the edge of the images of each column's inner nodes, by the room that their branches leave them."""
    tall = [0] * len(depth)
    for node in reversed(view.record.nodes):
        if not view.children.get(node.id):
            tall[node.id] += ROW if node.sampled else IDLE_ROW
        if node.parent is not None:
            tall[node.parent] += tall[node.id]
    sizes = []
    for column in range(max(depth, default=0) + 1):
        rooms = [tall[n.id] - ROOM for n in view.record.nodes if depth[n.id] == column and n.sampled and n.leaf is None]
        sizes.append(max(SMALLEST, min(LARGEST, *rooms)) if rooms else SMALLEST)
    return sizes


def _heads(view: TreeView, depth: Sequence[int]) -> list[tuple[str, str]]:
    """Return the words above each column: a noise level, and how paths came there."""
    record, steps = view.record, len(view.record.sigmas) - 1
    heads = []
    for column in range(max(depth, default=0) + 1):
        here = [node for node in record.nodes if depth[node.id] == column]
        step = here[0].step
        note = "what is predicted from starting noise"
        if step is not None:
            what = "split" if record.branching.get(step, 1) > 1 else "noise"
            note = f"{what} at {level(record.sigmas[step])}, step {step + 1} of {steps}"
        finished = all(node.leaf is not None for node in here)
        heads.append(("finished images" if finished else f"noise level {level(here[0].sigma)}", note))
    return heads


def line_class(strength: float | None) -> str:
    """Return the class of a line: "up3" for an advantage of 1 and more, "flat" for nearly 0, "none" without one."""
    if strength is None or not known(strength):
        return "none"
    size = sum(abs(strength) >= bound for bound in LEVELS)
    way = "up" if strength > 0 else "down"
    return f"{way}{size}" if size else "flat"


def _line(view: TreeView, node: TreeNode) -> str:
    if not node.sampled:
        return "none idle"
    return line_class(view.strength(node)) + " untrained" * _is_untrained(view, node)


def _is_untrained(view: TreeView, node: TreeNode) -> bool:
    """Return whether a step is in no part of the loss; where splits train, whether its branch has no part in one."""
    if node.parent is None or not node.sampled:
        return False
    if view.trains_splits:
        return view.split_trains(view.parent(node)) != "yes" or view.weight(node) is None
    return view.step_trains(node) == "no"


def _split_class(view: TreeView, node: TreeNode) -> str:
    if node.update_effect is None:
        return ""
    return "teaches" if view.split_trains(node) == "yes" else "silent"


def _node(view: TreeView, node: TreeNode, depth: Sequence[int], served: dict[str, str]) -> dict[str, Any]:
    """Return a node in the words and classes of the figure."""
    leaf, siblings, strength = node.leaf, view.children[node.parent], view.strength(node)
    failed = leaf is not None and node.sampled and not known(leaf.total)
    reward = three(leaf.total) if leaf is not None and node.sampled else ""
    kind = {"leaf": leaf is not None, "inner": leaf is None, "idle": not node.sampled, "failed": failed}
    image = served.get((node.picture if node.sampled else leaf and leaf.proxy_picture) or "")
    proxy = served.get(leaf.proxy_picture or "") if leaf is not None and node.sampled else None
    left_out = leaf is not None and push(leaf.advantage) and not leaf.trained and view.record.rule.get("samples")
    return {
        "id": node.id,
        "name": view.names[node.id],
        "label": describe(view, node),
        "sampled": node.sampled,
        "kind": " ".join([*(word for word, holds in kind.items() if holds), _split_class(view, node)]).strip(),
        "line": _line(view, node),
        "depth": depth[node.id],
        "position": siblings.index(node.id) + 1,
        "siblings": len(siblings),
        "chip": share(strength) if node.parent is not None and node.sampled and known(strength) else "",
        "turning": node.turning,
        "image": image,
        "proxy_image": proxy,
        "value": three(node.value) if leaf is None and node.sampled else "",
        "reward": "failed" if failed else reward,
        "passed": view.passed(node),
        "advantage": share(leaf.advantage) if leaf is not None and known(leaf.advantage) else "",
        "left_out": bool(left_out),
        "proxy": three(leaf.proxy) if leaf is not None and known(leaf.proxy) else "",
        "why": _short(leaf.chosen) if leaf is not None and leaf.chosen else "",
    }


def _short(chosen: str) -> str:
    """Return a reason where there is little room: "split at node 2: gap 0.41, better side" is "better side"."""
    if chosen.startswith("family of"):
        return "whole family"
    if chosen.startswith(("split", "family", "fill")):
        return chosen.removeprefix("fill: ").rpartition(", ")[2]
    return chosen


def _legend(view: TreeView) -> dict[str, bool]:
    nodes = view.record.nodes
    return {
        "splits": view.trains_splits,
        "silent": view.trains_splits and any(_split_class(view, node) == "silent" for node in nodes),
        "edges": bool(view.edges),
        "untrained": any(_is_untrained(view, node) for node in nodes),
        "turning": any(node.turning for node in nodes),
        "pulled": any(view.step_trains(edge) not in ("yes", "no") for edge in view.edges),
        "explored": any(not node.sampled for node in nodes),
        "proxy": any(node.sampled and node.leaf is not None and node.leaf.proxy_picture for node in nodes),
    }


# --- the panel


def panel(view: TreeView, thumb: Address, whole: Address, still: Callable[[str], str | None]) -> list[dict[str, Any]]:
    """Return a JSON value a node, in the order of their ids: the facts that static/tree.js shows of it.

    Args:
        view: the tree.
        thumb: address of a small still image of a file in the tree's folder.
        whole: address of the file itself.
        still: address of the first frame of a file that moves; None of others.
    """

    def image(file: str | None) -> dict[str, str | None] | None:
        return {"file": whole(file), "still": still(file), "thumb": thumb(file)} if file else None

    return [_panel(view, node, image) for node in view.record.nodes]


def _panel(view: TreeView, node: TreeNode, image: Callable[[str | None], Any]) -> dict[str, Any]:
    leaf, (best, words) = node.leaf, became(view, node)
    what = f"the image that the network predicted at noise level {level(node.sigma)}"
    if leaf is not None:
        what = "the finished image"
    return {
        "id": node.id,
        "name": view.names[node.id],
        "title": title(view, node),
        "parent": node.parent,
        "children": list(view.children.get(node.id, ())),
        "sampled": node.sampled,
        "what": what if node.sampled else "only explored",
        "image": image(node.picture),
        "proxy": image(leaf.proxy_picture) if leaf is not None else None,
        "best": best.id,
        "became": words,
        "split": _split(view, node, image),
        "step": step_facts(view, node),
        "sample": sample_facts(view, node),
        "parts": [] if leaf is None else [(name, three(raw)) for name, raw in leaf.rewards.items() if "/" in name],
    }


def _split(view: TreeView, node: TreeNode, image: Callable[[str | None], Any]) -> dict[str, Any] | None:
    """Return what a split asked of its prediction: before, aim, after; and the images that pull and push away."""
    effect = node.update_effect
    if effect is None:
        return None
    trains = view.split_trains(node) == "yes"
    ranked = sorted(effect.pulls, key=lambda leaf: -effect.pulls[leaf]) if trains else []
    ends = ranked if len(ranked) <= 2 * ENDS else [*ranked[:ENDS], *ranked[-ENDS:]]
    return {
        "trains": trains,
        "same": abs(effect.sigma - node.sigma) < 1e-6,
        "shots": [{"label": label, "image": image(file)} for label, file in split_images(node)],
        "eta": "" if effect.eta == 1 else f" {three(effect.eta)} times",
        "facts": split_facts(view, node),
        "ends": [{"id": id, "weight": share(effect.pulls[id]), "way": push(effect.pulls[id])} for id in ends],
        "more": len(ranked) - len(ends),
    }


def split_images(node: TreeNode) -> list[tuple[str, str]]:
    """Return label and file of the images before, aim and after that were kept of a split."""
    files = [(which, getattr(node.update_effect, which)) for which in EFFECT_IMAGES if node.update_effect is not None]
    return [(which, file) for which, file in files if file]
