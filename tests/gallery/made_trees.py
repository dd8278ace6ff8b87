"""Trees for tests, written in the documented format by hand: what they say was computed on paper, not by diffrl."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from PIL import Image, ImageDraw

from diffrl.gallery.trees.story import story
from diffrl.gallery.trees.view import tree_view
from diffrl.trees.record import EFFECT_IMAGES, TreeLeaf, TreeNode, TreeRecord, UpdateEffect

DIFFRL = {
    "reward": "turning_point",
    "value": "leaves",
    "fusion": "uniform",
    "normalise": "depth",
    "objective": "nft",
    "edges": True,
    "samples": True,
}
OUTCOME = {**DIFFRL, "reward": "outcome", "normalise": "group", "objective": "grpo", "samples": False}
NFT = {**OUTCOME, "objective": "nft", "edges": False, "samples": True}
TILT = {**OUTCOME, "objective": "tilt", "edges": False, "nodes": True, "prompts": 8, "updates": 1, "skipped": 0}
EXPLORED = {
    "precision": "nvfp4",
    "engine": "emulated",
    "steps": 3,
    "select": "best_worst",
    "candidates": 64,
    "keep": 16,
    "audit": 2,
}


def leaf(total: float | None, path: tuple[int, ...] = (), **more: Any) -> TreeLeaf:
    """A scored picture that passes from a reward of 1 on; None is one that failed."""
    raw: Mapping[str, float | None] = {"shapes": total, "shapes_strict": None if total is None else float(total >= 1)}
    error = None if total is not None else "shapes: no object found"
    return TreeLeaf(**{"path": path, "total": total, "rewards": raw, "error": error, **more})


def record(nodes: list[TreeNode], **more: Any) -> TreeRecord:
    """A record of iteration 20 with its usual surroundings."""
    fields: dict[str, Any] = {
        "iteration": 20,
        "group": 3,
        "prompt": "a red circle above a blue square",
        "seed": 0,
        "sigmas": [1.0, 0.75, 0.5, 0.25, 0.0],
        "branching": {0: 2, 2: 2},
        "rule": DIFFRL,
        "explored": None,
        "metadata": {"relation": "above"},
    }
    return TreeRecord(**{**fields, **more, "nodes": nodes})


FOREST = [[[1.0, 0.25], [0.5, 0.5]], [[1.0, 1.0], [0.25, 0.25]], [[0.5, 0.25], [0.25, 0.5]], [[1.0, 0.5], [0.5, None]]]
"""Rewards of 4 starting noises x 2 x 2; the last failed."""


def forest(**more: Any) -> TreeRecord:
    """4 starting noises, two splits in two: 28 nodes, 24 steps, 16 pictures of which one failed."""
    nodes: list[TreeNode] = []
    for root, tree in enumerate(FOREST):
        below = [[reward for reward in pair if reward is not None] for pair in tree]
        everything = [reward for pair in below for reward in pair]
        value = sum(everything) / len(everything)
        nodes.append(TreeNode(len(nodes), None, root, 0, None, 1.0, value=value, picture=f"node-{len(nodes)}.webp"))
        top = nodes[-1].id
        for a, pair in enumerate(below):
            worth = sum(pair) / len(pair)
            middle = TreeNode(
                len(nodes), top, root, a, 0, 0.75, value=worth, advantage=round(3 * (worth - value), 3), trained=True,
                turning=(root, a) in ((1, 0), (1, 1)), credited=2 * (worth - value),
                log_ratio=round(0.001 * (worth - value) + 0.0001, 6),
                picture=f"node-{len(nodes)}.webp",
            )  # fmt: skip
            nodes.append(middle)
            for b, reward in enumerate(tree[a]):
                step = 0.0 if reward is None else round(2.5 * (reward - worth), 3)
                own = None if reward is None else round(2 * (reward - 0.55), 3)
                nodes.append(
                    TreeNode(
                        len(nodes), middle.id, root, b, 2, 0.25, value=reward, advantage=step,
                        trained=reward is not None,
                        log_ratio=None if reward is None else round(0.0008 * step - 0.0002, 6),
                        picture=f"node-{len(nodes)}.webp",
                        leaf=leaf(reward, (a, b), advantage=own, trained=reward is not None),
                    )
                )  # fmt: skip
    return record(nodes, **more)


def pool(candidates: int = 64, keep: int = 16, audits: int = 2, **more: Any) -> TreeRecord:
    """Candidates that differ by their starting noise alone; the proxy is the candidate's rank, the truth nearly so."""
    nodes: list[TreeNode] = []
    for place in range(candidates):
        rank = (place * 37) % candidates  # 0 is the worst: candidates come in no order
        proxy = rank / (candidates - 1)
        chosen = f"best {candidates - rank}" if rank >= candidates - keep // 2 else None
        chosen = f"worst {rank + 1}" if rank < keep // 2 else chosen
        audit = chosen is None and candidates // 2 <= rank < candidates // 2 + audits
        chosen = "audit" if audit else chosen
        truth = None if chosen is None else round(min(1.0, max(0.0, proxy + (0.2 if rank % 3 == 0 else -0.1))), 3)
        sample = TreeLeaf((), proxy, f"proxy-{place}.webp", chosen, audit)
        if chosen is not None:
            sample = leaf(
                truth, proxy=proxy, proxy_picture=f"proxy-{place}.webp", chosen=chosen, audit=audit,
                advantage=None if audit else round(2 * ((truth or 0) - 0.5), 3), trained=not audit,
            )  # fmt: skip
        drawn = chosen is not None
        picture = f"node-{place}.webp" if drawn else None
        nodes.append(TreeNode(place, None, place, 0, None, 1.0, drawn, truth, picture=picture, leaf=sample))
    explored = {**EXPLORED, "candidates": candidates, "keep": keep, "audit": audits}
    return record(nodes, **{"branching": {}, "rule": NFT, "explored": explored, **more})


def wide_forest(roots: int = 16, **more: Any) -> TreeRecord:
    """An explored forest of `roots` x 2 x 2 of which one root in four is drawn again, with half of its leaves."""
    nodes: list[TreeNode] = []
    for root in range(roots):
        kept = root % 4 == 0
        nodes.append(
            TreeNode(len(nodes), None, root, 0, None, 1.0, kept, 0.5 if kept else None,
                     picture=f"node-{len(nodes)}.webp" if kept else None)
        )  # fmt: skip
        top = nodes[-1].id
        for a in range(2):
            picture = f"node-{len(nodes)}.webp" if kept else None
            nodes.append(
                TreeNode(len(nodes), top, root, a, 0, 0.75, kept, 0.5 if kept else None, 0.0 if kept else None,
                         trained=kept, picture=picture)
            )  # fmt: skip
            middle = nodes[-1].id
            for b in range(2):
                drawn, place = kept and b == a, len(nodes)
                reason = f"split at node {top}: gap 0.41, {'better' if a else 'worse'} side"
                sample = TreeLeaf((a, b), round((root + a) / (roots + 1), 3), f"proxy-{place}.webp")
                if drawn:
                    sample = leaf(
                        float(a), (a, b), proxy=sample.proxy, proxy_picture=sample.proxy_picture, chosen=reason,
                        advantage=2.0 * a - 1, trained=True,
                    )  # fmt: skip
                nodes.append(
                    TreeNode(place, middle, root, b, 2, 0.25, drawn, float(a) if drawn else None,
                             (2.0 * a - 1) if drawn else None, trained=drawn,
                             picture=f"node-{place}.webp" if drawn else None, leaf=sample)
                )  # fmt: skip
    explored = {**EXPLORED, "candidates": 4 * roots, "select": "sibling_contrast"}
    return record(nodes, **{"explored": explored, **more})


def chains(roots: int = 16, steps: int = 4, **more: Any) -> TreeRecord:
    """Chains with noise at every step but the last, each step with its picture's advantage."""
    nodes: list[TreeNode] = []
    sigmas = [round(1 - step / (steps + 1), 3) for step in range(steps + 1)] + [0.0]
    for root in range(roots):
        reward = (root % 5) / 4
        own = round(2 * (reward - 0.45), 3)
        parent = None
        for depth in range(steps + 1):
            last = depth == steps
            edge = {} if depth == 0 else {"advantage": own, "trained": True, "log_ratio": 0.00002 * (root - 6)}
            nodes.append(
                TreeNode(
                    len(nodes), parent, root, 0, depth - 1 if depth else None, sigmas[depth], value=reward,
                    picture=f"node-{len(nodes)}.webp", leaf=leaf(reward, (0,) * steps, advantage=own) if last else None,
                    **edge,
                )
            )  # fmt: skip
            parent = nodes[-1].id
    branching = {step: 1 for step in range(steps)}
    return record(nodes, **{"sigmas": sigmas, "branching": branching, "rule": OUTCOME, **more})


def tilted(**more: Any) -> TreeRecord:
    """One starting noise, two splits in two; the pictures of 1b are alike, so that its split has no direction.

    With A the advantages, a picture's weight is (A - mean A of the other branch) / 4 at 1 and / 2 at 1a.
    """
    picture = "node-{}.webp".format
    named = [[f"{which}-{node}.webp" for which in EFFECT_IMAGES] for node in (0, 1)]
    first = UpdateEffect(1.0, True, 0.2, 2, {2: 0.4585, 3: -0.2295, 5: -0.1145, 6: -0.1145}, 0.01, 0.5, 1.0, *named[0])
    second = UpdateEffect(0.5, True, 0.1, 2, {2: 1.376, 3: -1.376}, 0.004, -0.25, 1.0, *named[1])
    third = UpdateEffect(0.5, False, 0.0, 2, {5: 0.0, 6: 0.0}, 0.003, None)
    nodes = [
        TreeNode(0, None, 0, 0, None, 1.0, value=0.5625, picture=picture(0), update_effect=first),
        TreeNode(1, 0, 0, 0, 0, 0.75, value=0.625, advantage=0.229, picture=picture(1), update_effect=second),
        *(TreeNode(i, 1, 0, i - 2, 2, 0.25, value=reward, advantage=own, log_ratio=0.0001 * own, picture=picture(i),
                   leaf=leaf(reward, (0, i - 2), advantage=own))
          for i, reward, own in ((2, 1.0, 1.605), (3, 0.25, -1.147))),
        TreeNode(4, 0, 0, 1, 0, 0.75, value=0.5, advantage=-0.229, picture=picture(4), update_effect=third),
        *(TreeNode(i, 4, 0, i - 5, 2, 0.25, value=0.5, advantage=-0.229, log_ratio=0.0, picture=picture(i),
                   leaf=leaf(0.5, (1, i - 5), advantage=-0.229))
          for i in (5, 6)),
    ]  # fmt: skip
    return record(nodes, **{"rule": TILT, **more})


def split(first: Mapping[str, Any], second: Mapping[str, Any], **more: Any) -> TreeRecord:
    """One noise that splits into two images at noise level 0.50; `first` and `second` change the leaves' nodes."""
    nodes = [TreeNode(0, None, 0, 0, None, 1.0, value=0.625)]
    for child, (reward, changes) in enumerate(zip((1.0, 0.25), (first, second), strict=True)):
        node = TreeNode(
            child + 1, 0, 0, child, 2, 0.25, value=reward, advantage=1.0 - 2 * child, trained=True,
            leaf=leaf(reward, (child,), advantage=1.0 - 2 * child),
        )  # fmt: skip
        nodes.append(replace(node, **changes))
    return record(nodes, **{"branching": {2: 2}, **more})


def said(facts: Any) -> dict[str, str]:
    """What facts of a node say by their labels, with their notes."""
    return {fact.label: fact.value + fact.note for fact in facts}


def told(tree: TreeRecord) -> dict[str, dict[str, str]]:
    """What the story's facts say by their labels, by the keys of their sections."""
    view = tree_view(tree)
    sections: dict[str, dict[str, str]] = {}
    for section in story(view):
        labels = [label for label, _ in section.facts]
        assert len(set(labels)) == len(labels), "no label stands twice"
        sections[section.key] = {
            label: "".join(part if isinstance(part, str) else view.names[part] for part in parts)
            for label, parts in section.facts
        }
    return sections


def named(tree: TreeRecord, key: str) -> dict[str, list[int]]:
    """Nodes that the facts of a section refer to, by label."""
    (section,) = [one for one in story(tree_view(tree)) if one.key == key]
    return {label: [part for part in parts if isinstance(part, int)] for label, parts in section.facts}


def write(run: Path, tree: TreeRecord, frames: int = 1, size: int = 32) -> Path:
    """tree.json and its pictures, flat shapes whose colour follows the node; with more frames they move."""
    folder = run / "trees" / tree.name
    folder.mkdir(parents=True)
    document = {"format": 1, **asdict(tree)}
    (folder / "tree.json").write_text(json.dumps(document), encoding="utf-8")
    for node in tree.nodes:
        worth = node.value if node.value is not None else 0.5
        if node.picture:
            blur = 0.25 if node.leaf is None else 1.0
            _picture(folder / node.picture, worth, node.root, blur, frames, size)
        for place, which in enumerate(EFFECT_IMAGES):
            if node.update_effect is not None and getattr(node.update_effect, which):
                _picture(folder / getattr(node.update_effect, which), 0.3 * place, node.root, 0.5, frames, size)
        if node.leaf is not None and node.leaf.proxy_picture:
            _picture(folder / node.leaf.proxy_picture, node.leaf.proxy or 0.0, node.root, 0.7, 1, size)
    return folder


def _picture(path: Path, worth: float, root: int, sharp: float, frames: int, size: int) -> None:
    shots = []
    for frame in range(frames):
        image = Image.new("RGB", (size, size), (238, 236, 230))
        draw = ImageDraw.Draw(image)
        tone = tuple(round(238 + (part - 238) * sharp) for part in (196, 60 + 9 * root % 90, 60))
        reach = size * (0.12 + 0.12 * worth)
        middle = size * (0.3 + 0.05 * frame)
        draw.ellipse([middle - reach, middle - reach, middle + reach, middle + reach], fill=tone)
        tone = tuple(round(238 + (part - 238) * sharp) for part in (50, 90, 190))
        draw.rectangle([size * 0.55, size * 0.6, size * (0.6 + 0.3 * worth), size * 0.9], fill=tone)
        shots.append(image)
    shots[0].save(path, save_all=frames > 1, append_images=shots[1:], duration=120, loop=0)
