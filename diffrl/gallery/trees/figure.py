"""A tree as a figure: HTML and SVG whose places were computed here, the same in the gallery and in a run's report."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from diffrl.gallery.trees.layout import Edge, Layout, deep, lay_out
from diffrl.gallery.trees.numbers import known, level, push, share, signed, three
from diffrl.gallery.trees.splits import asked, draws, train, weight, why_not
from diffrl.gallery.trees.words import Sums, change, pushed, sums
from diffrl.trees.record import TreeNode, TreeRecord

TREE_FIGURE_CSS = (Path(__file__).parents[1] / "static" / "tree_figure.css").read_text(encoding="utf-8")
"""What `tree_figure` needs, all of it below the class `treefig`."""
LEVELS = (0.1, 0.5, 1.0)
"""Sizes of advantages at which lines grow wider: the same in every tree, so that trees can be compared."""


def tree_figure(
    record: TreeRecord, picture: Callable[[str], str], *, interactive: bool = False, scale: float = 0.8
) -> Markup:
    """One prompt's tree, static, with its legend; useful without scripts.

    Args:
        record: the tree.
        picture: gives the address, or data: URI, of a file in the tree's folder.
        interactive: with the roles, links and the second layout that the gallery's tree page needs.
        scale: size, 1 for images of 64 pixels.

    Returns:
        HTML for a page that has `TREE_FIGURE_CSS`.
    """
    given = sums(record)
    whole = lay_out(record)
    explored = any(not node.drawn for node in record.nodes)
    fewer = lay_out(record, drawn_only=True) if explored and interactive else None
    second = {place.node: place for place in fewer.places} if fewer else {}
    depth, served = _positions(given), _served(record, picture)
    nodes = [
        node_view(given, record.nodes[place.node], served.__getitem__)
        | {"place": place, "second": second.get(place.node)}
        | depth[place.node]
        for place in whole.places
    ]
    return Markup(
        _template().render(
            record=record, given=given, layout=whole, fewer=fewer, nodes=nodes, edges=_edges(given, whole),
            fewer_edges=_edges(given, fewer) if fewer else [], interactive=interactive, scale=scale,
            legend=_legend(given), order=_order(given),
        )
    )  # fmt: skip


def _served(record: TreeRecord, picture: Callable[[str], str]) -> dict[str, str]:
    """Address of each file: where there is room for some only, they are those of what was drawn."""
    drawn = [node for node in record.nodes if node.drawn]
    files = [node.picture for node in drawn]
    for nodes in (drawn, record.nodes):
        files += [node.leaf.proxy_picture for node in nodes if node.leaf is not None]
    files += [node.picture for node in record.nodes]
    return {file: picture(file) for file in dict.fromkeys(files) if file}


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    loader = jinja2.PackageLoader("diffrl.gallery", "templates")
    environment = jinja2.Environment(
        loader=loader, autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    return environment.get_template("tree_figure.html")


def strength(advantage: float | None) -> str:
    """The class of a line: "up3" for an advantage of 1 and more, "flat" for nearly 0, "none" where there is none."""
    if not known(advantage):
        return "none"
    assert advantage is not None
    size = sum(abs(advantage) >= bound for bound in LEVELS)
    return "flat" if not size else f"{'up' if advantage > 0 else 'down'}{size}"


def node_view(given: Sums, node: TreeNode, picture: Callable[[str], str]) -> dict[str, Any]:
    """A node in the words and classes of the figure."""
    leaf = node.leaf
    kind = ("leaf" if leaf is not None else "inner") + ("" if node.drawn else " idle")
    passed = given.passed(node)
    failed = leaf is not None and node.drawn and not known(leaf.total)
    return {
        "id": node.id,
        "name": given.names[node.id],
        "kind": kind + (" failed" if failed else ""),
        "edge": _edge_class(given, node),
        "chip": share(asked(given, node)) if node.parent is not None and known(asked(given, node)) else None,
        "split": split_class(node),
        "why": why_not(given, node),
        "turning": node.turning,
        "trained": node.trained,
        "picture": picture(node.picture) if node.picture else None,
        "proxy_picture": picture(leaf.proxy_picture) if leaf is not None and leaf.proxy_picture else None,
        "value": three(node.value) if leaf is None and node.drawn else None,
        "reward": None if leaf is None or not node.drawn else "failed" if failed else three(leaf.total),
        "passed": passed,
        "proxy": three(leaf.proxy) if leaf is not None and known(leaf.proxy) else None,
        "advantage": share(leaf.advantage) if leaf is not None and known(leaf.advantage) else None,
        "left_out": bool(leaf and given.record.rule.get("samples") and push(leaf.advantage) and not leaf.trained),
        "short": _short(leaf.chosen) if leaf is not None and leaf.chosen else None,
        "row": node.drawn and node.parent is not None or not given.edges,
        "label": describe(given, node),
    }


def _short(chosen: str) -> str:
    """The reason of a choice where there is little room: "split at node 2: gap 0.41, better side" is "better side"."""
    return chosen.rpartition(", ")[2] if chosen.startswith("split") else chosen.removeprefix("fill: ")


def _edge_class(given: Sums, node: TreeNode) -> str:
    if not node.drawn:
        return "none idle"
    return f"{strength(asked(given, node))}{' untrained' if _untrained(given, node) else ''}"


def _untrained(given: Sums, node: TreeNode) -> bool:
    """Whether a drawn step is in no part of the loss; where splits train, whether its branch has no part in one."""
    if node.parent is None or not node.drawn:
        return False
    if train(given):
        return not draws(given.parent(node)) or weight(given, node) is None
    return not pushed(node) and not given.pulled(node)


def split_class(node: TreeNode) -> str:
    """The class of a node by its split: "teaches", "silent", "" where splits do not train or it does not split."""
    return "" if node.pushed is None else "teaches" if draws(node) else "silent"


def describe(given: Sums, node: TreeNode) -> str:
    """A node and the step to it in one line, as a screen reader says it."""
    leaf, said = node.leaf, []
    if leaf is None:
        said.append(f"{'Starting noise' if node.parent is None else 'Node'} {given.names[node.id]}")
        said.append(f"noise level {level(node.sigma)}")
    else:
        said.append(f"{'Image' if node.drawn else 'Candidate, only explored,'} {given.names[node.id]}")
    if leaf is not None and node.drawn:
        passed = {True: ", passed", False: ", not passed", None: ""}[given.passed(node)]
        said.append(f"reward {three(leaf.total)}{passed}" if known(leaf.total) else "reward failed")
    elif known(node.value):
        said.append(f"worth {three(node.value)}")
    if leaf is not None and known(leaf.proxy):
        said.append(f"proxy reward {three(leaf.proxy)}")
    if leaf is not None and leaf.chosen:
        said.append(f"chosen: {given.reason(node)}")
    if leaf is not None and known(leaf.advantage):
        trains = leaf.trained and push(leaf.advantage)
        said.append(f"advantage of the image {share(leaf.advantage)}{', trains' if trains else ''}")
    if node.parent is not None and node.drawn:
        said += _step_words(given, node)
    if node.pushed is not None:
        reason = why_not(given, node)
        said.append(f"its split does not train: {reason}" if reason else "its split trains")
    return ", ".join(said)


def _step_words(given: Sums, node: TreeNode) -> list[str]:
    said = []
    moved = [f"change of log-likelihood {change(given, node)}"] if known(node.log_ratio) else []
    if (step := given.step_reward(node)) is not None:
        said.append(f"step {signed(step)}")
    if known(node.advantage):
        said.append(f"advantage of the step {share(node.advantage)}")
    if train(given):
        above = given.parent(node)
        said.append(f"weight at the split {given.names[above.id] if above else ''} {share(weight(given, node))}")
        return said + moved
    pulled = "step is only pulled to the starting model" if given.pulled(node) else None
    said.append("step trains" if pushed(node) else pulled or "step does not train")
    if node.turning:
        said.append("turning point")
    return said + moved


def _edges(given: Sums, layout: Layout) -> list[dict[str, Any]]:
    """Lines from the faintest to the strongest, so that what matters lies on top."""

    def rank(edge: Edge) -> float:
        node = given.record.nodes[edge.node]
        return -1.0 if not node.drawn else abs(asked(given, node) or 0.0)

    return [
        {"node": edge.node, "path": edge.path, "css": _edge_class(given, given.record.nodes[edge.node])}
        for edge in sorted(layout.edges, key=rank)
    ]


def _legend(given: Sums) -> dict[str, bool]:
    nodes = given.record.nodes
    return {
        "splits": train(given),
        "silent": train(given) and any(split_class(node) == "silent" for node in nodes),
        "edges": any(node.parent is not None and node.drawn for node in nodes),
        "untrained": any(_untrained(given, node) for node in nodes),
        "turning": any(node.turning for node in nodes),
        "predicted": deep(nodes) and any(node.picture and node.leaf is None for node in nodes),
        "pulled": any(given.pulled(node) for node in nodes),
        "explored": any(not node.drawn for node in nodes),
        "proxy": any(node.leaf is not None and node.leaf.proxy_picture for node in nodes),
    }


def _positions(given: Sums) -> list[dict[str, int]]:
    """Depth, place among siblings and number of siblings, as trees tell screen readers."""
    found: list[dict[str, int]] = []
    for node in given.record.nodes:
        siblings: Sequence[int] = given.children[node.parent]
        depth = 1 if node.parent is None else found[node.parent]["depth"] + 1
        found.append({"depth": depth, "position": siblings.index(node.id) + 1, "siblings": len(siblings)})
    return found


def _order(given: Sums) -> list[int]:
    """Ids depth first, so that reading and tabbing follow the branches."""
    found: list[int] = []
    waiting = list(given.children.get(None, ()))[::-1]
    while waiting:
        found.append(waiting.pop())
        waiting += list(given.children.get(found[-1], ()))[::-1]
    return found
