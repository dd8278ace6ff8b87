"""What the side panel says of a node and of the step to it, and the tables of all steps and all images."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diffrl.gallery.records import reason
from diffrl.gallery.trees.numbers import counted, known, level, push, share, signed, three, tiny
from diffrl.gallery.trees.splits import asked, split_panel, train, weight, weights_of
from diffrl.gallery.trees.sums import reward_sum, sample_sum, step_sum
from diffrl.gallery.trees.turning import paths_through
from diffrl.gallery.trees.words import Sums, against, change, rounding, total, trains
from diffrl.trees.record import TreeLeaf, TreeNode

Fact = tuple[str, str]


def panel(
    given: Sums,
    thumb: Callable[[str], str],
    whole: Callable[[str], str],
    still: Callable[[str], str | None] = lambda file: None,
) -> list[dict[str, Any]]:
    """A JSON value a node, in the order of their ids.

    Args:
        given: the tree.
        thumb: address of a small still image of a file in the tree's folder.
        whole: address of the file itself.
        still: address of the first frame of a file that moves; None of others.
    """
    below = samples_below(given)
    return [
        {**_node(given, node, thumb, whole, still), "branches": branches(given, node, below, whole, still)}
        for node in given.record.nodes
    ]


def _node(
    given: Sums,
    node: TreeNode,
    thumb: Callable[[str], str],
    whole: Callable[[str], str],
    still: Callable[[str], str | None],
) -> dict[str, Any]:
    leaf = node.leaf
    proxy = leaf.proxy_picture if leaf is not None else None
    return {
        "id": node.id,
        "name": given.names[node.id],
        "title": title(given, node),
        "parent": node.parent,
        "children": list(given.children.get(node.id, ())),
        "drawn": node.drawn,
        "path": [{"id": above.id, "name": given.names[above.id]} for above in given.path(node)],
        "thumb": thumb(node.picture) if node.picture else None,
        "picture": whole(node.picture) if node.picture else None,
        "still": still(node.picture) if node.picture else None,
        "proxy": whole(proxy) if proxy else None,
        "proxy_still": still(proxy) if proxy else None,
        "what": _what(node),
        "split": split_panel(given, node, thumb, whole, still),
        "step": [list(fact) for fact in step_facts(given, node)],
        "sample": [list(fact) for fact in sample_facts(given, node)],
        "parts": [] if leaf is None else [[name, three(raw)] for name, raw in leaf.rewards.items() if "/" in name],
    }


def title(given: Sums, node: TreeNode) -> str:
    """What a node is."""
    name = given.names[node.id]
    if node.leaf is not None:
        return f"Image {name}" if node.drawn else f"Candidate {name}"
    return f"Starting noise {name}" if node.parent is None else f"Node {name}"


def _what(node: TreeNode) -> str:
    if node.leaf is not None:
        return "the finished image" if node.drawn else "only explored"
    return f"the image that the network predicted at noise level {level(node.sigma)}" if node.drawn else "only explored"


def step_facts(given: Sums, node: TreeNode) -> list[Fact]:
    """Of the node and of the step that ends in it."""
    above, sigmas = given.parent(node), given.record.sigmas
    facts = []
    if node.step is not None:
        facts.append(
            ("Step", f"{node.step + 1} of {len(sigmas) - 1}, noise {level(sigmas[node.step])} to {level(node.sigma)}")
        )
    facts.append(("Worth", three(node.value)))
    if above is not None:
        facts.append((f"Worth of {given.names[above.id]} before it", three(above.value)))
        facts.append(("Step reward", signed(given.step_reward(node))))
        if words := _credited(given, node):
            facts.append(("Credited", words))
        facts.append(("Advantage", _equals(share(node.advantage), step_sum(given, node))))
        facts.append(("Turning point", _turning(given, node)))
        if train(given):
            facts.append((f"Weight at the split {given.names[above.id]}", share(weight(given, node))))
        else:
            facts.append(("Trains", trains(given, node)))
        astray = ", against its push" * against(given, node)
        facts.append(("Change of log-likelihood", f"{change(given, node)}{astray}"))
    return facts


def _equals(amount: str, sum_: str) -> str:
    """A number and the sum that it is, where that is known; a sum in words follows a comma."""
    return amount + (f"{' =' if sum_[0] in '(+−0123456789' else ','} {sum_}" if sum_ else "")


def _credited(given: Sums, node: TreeNode) -> str:
    """What the step was credited with where that is not what it adds; "" elsewhere and where it was not recorded."""
    step = given.step_reward(node)
    if not known(node.credited) or (not node.turning and step is not None and signed(step) == signed(node.credited)):
        return ""
    if node.turning:
        paths = paths_through(given, node)
        why = "the way to the end" if paths <= 1 else f"the mean over its {paths} paths"
        return f"{signed(node.credited)}, {why}"
    if given.record.rule.get("reward") == "fused":
        return f"{three(node.credited)}, what {given.names[node.id]} is worth"
    return signed(node.credited)


def _turning(given: Sums, node: TreeNode) -> str:
    """Whether the path turns at a step, and on how many of its paths, where the step counts as the way to the end."""
    if not node.turning:
        return "no: balancing dropped it" if node.turns else "no"
    paths = paths_through(given, node)
    return f"yes ◆, on {sum(node.turns.values())} of {paths} paths" if node.turns and paths > 1 else "yes ◆"


def _moved(given: Sums, node: TreeNode) -> str:
    """What the update did to a step's likelihood, "≈ 0" where that is rounding."""
    small = node.log_ratio is not None and 0 < abs(node.log_ratio) <= rounding(given.record)
    return "≈ 0" if small else tiny(node.log_ratio)


def _contrasts(given: Sums, node: TreeNode) -> str:
    """Whether an image trains by contrast."""
    if given.pulled_sample(node):
        return "only pulled to the starting model"
    return "yes" if node.leaf is not None and node.leaf.trained and push(node.leaf.advantage) else "no"


def sample_facts(given: Sums, node: TreeNode) -> list[Fact]:
    """Of the image or the candidate; nothing of inner nodes."""
    leaf = node.leaf
    if leaf is None:
        return []
    facts: list[Fact] = []
    if node.drawn:
        passed = given.passed(node)
        facts.append(("Reward", _equals(three(leaf.total) if known(leaf.total) else "failed", reward_sum(given, node))))
        if passed is not None:
            facts.append(("Passed", f"{'yes' if passed else 'no'}, by {given.verdict}"))
        facts.append(("Advantage", _equals(share(leaf.advantage), sample_sum(given, node))))
        if train(given):
            splits = weights_of(given, node)
            facts += [(f"Weight at the split {given.names[above.id]}", share(own)) for above, own in splits]
        else:
            facts.append(("Trains by contrast", _contrasts(given, node)))
    if given.record.explored:
        facts.append(("Proxy reward", three(leaf.proxy) + _ranked(given, leaf)))
        facts.append(("Generated again", given.reason(node) or "no"))
    if leaf.audit:
        facts.append(("Audit", "generated only to check the ranking"))
    if leaf.error:
        facts.append(("Could not be scored", leaf.error))
    if why := reason(leaf.notes):
        facts.append(("Scorers say", why))
    return facts + [(name, three(raw)) for name, raw in leaf.rewards.items() if "/" not in name]


def _ranked(given: Sums, leaf: TreeLeaf) -> str:
    """A candidate's rank by proxy, and how many are level with it."""
    proxies = [other.leaf.proxy for other in given.leaves if other.leaf and other.leaf.proxy is not None]
    if leaf.proxy is None or len(proxies) < 2:
        return ""
    same = proxies.count(leaf.proxy) - 1
    place = 1 + sum(proxy > leaf.proxy for proxy in proxies)
    return f", {place} of {len(proxies)}" + (f", level with {counted(same, 'other')}" if same else "")


def step_rows(given: Sums) -> list[dict[str, Any]]:
    """All drawn steps, the strongest push first, up or down."""
    found = sorted(given.edges, key=lambda edge: -abs(asked(given, edge) or 0.0))
    return [
        {
            "id": edge.id,
            "name": given.names[edge.id],
            "from": given.names[edge.parent or 0],
            "noise": f"{level(given.record.sigmas[edge.step or 0])} → {level(edge.sigma)}",
            "before": three(above.value if (above := given.parent(edge)) else None),
            "value": three(edge.value),
            "step": signed(given.step_reward(edge)),
            "credited": signed(edge.credited if edge.turning else None),
            "advantage": share(edge.advantage),
            "turning": edge.turning,
            "trained": trains(given, edge),
            "weight": share(weight(given, edge)),
            "change": _moved(given, edge),
        }
        for edge in found
    ]


def picture_rows(given: Sums) -> list[dict[str, Any]]:
    """All leaves: drawn ones first, best first, then failed ones, then what was only explored."""
    failed = [node for node in given.drawn_leaves if node.leaf and not known(node.leaf.total)]
    rest = [node for node in given.leaves if not node.drawn]
    rows = []
    for node in [*given.scored, *failed, *rest]:
        assert node.leaf is not None
        passed, splits = given.passed(node), weights_of(given, node)
        rows.append(
            {
                "id": node.id,
                "name": given.names[node.id],
                "reward": three(node.leaf.total) if known(node.leaf.total) else "failed" if node.drawn else "–",
                "passed": "–" if passed is None else "yes" if passed else "no",
                "advantage": share(node.leaf.advantage),
                "trained": _contrasts(given, node),
                "weights": ", ".join(f"{share(own)} at {given.names[above.id]}" for above, own in reversed(splits)),
                "proxy": three(node.leaf.proxy),
                "chosen": given.reason(node) or "–",
                "error": node.leaf.error or "",
            }
        )
    return rows


Below = Mapping[int, Sequence[TreeNode]]


def samples_below(given: Sums) -> Below:
    """Scored samples below each node, and the node's own, by its id, best first."""
    found: dict[int, list[TreeNode]] = {}
    for leaf in given.scored:
        for above in given.path(leaf):
            found.setdefault(above.id, []).append(leaf)
    return found


def branches(
    given: Sums, split: TreeNode, below: Below, whole: Callable[[str], str], still: Callable[[str], str | None]
) -> list[dict[str, Any]]:
    """The drawn branches of a split; nothing where nothing splits.

    Args:
        given: the tree.
        split: the node that they leave.
        below: of `samples_below`.
        whole: address of a file in the tree's folder.
        still: address of the first frame of a file that moves; None of others.

    Returns:
        A JSON value a branch: its id, what it became in words, and the image of the best sample below it, or where
        none was scored its own.
    """
    drawn = [node for id_ in given.children.get(split.id, ()) if (node := given.record.nodes[id_]).drawn]
    return [_branch(node, below.get(node.id, ()), whole, still) for node in drawn] if len(drawn) > 1 else []


def _branch(
    node: TreeNode, samples: Sequence[TreeNode], whole: Callable[[str], str], still: Callable[[str], str | None]
) -> dict[str, Any]:
    picture = samples[0].picture if samples else node.picture
    return {
        "id": node.id,
        "picture": whole(picture) if picture else None,
        "still": still(picture) if picture else None,
        "says": _says(node, samples),
    }


def _says(node: TreeNode, samples: Sequence[TreeNode]) -> str:
    advantage = "" if node.advantage is None else f", advantage {share(node.advantage)}"
    if node.leaf is not None:
        return (f"reward {three(total(node))}" if samples else "failed") + advantage
    if not samples:
        return f"worth {three(node.value)}{advantage}"
    best, worst = three(total(samples[0])), three(total(samples[-1]))
    became = f"{counted(len(samples), 'image')}, {best}" + (f" to {worst}" if worst != best else "")
    return f"worth {three(node.value)}{advantage}; {became}"
