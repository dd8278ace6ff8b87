"""Which of one prompt's N candidates to regenerate, or of its nodes to train: each rule keeps exactly K of them.

Every rule rests on one stable sort of the rewards, best first, the lower index first among equals: so ties never return
a candidate twice. Rewards are rounded first (`quantise`): those that other batches, or ranks, may return in another
order count as equal, and the index, which follows the address, decides. That moves the edges at which rounding decides
and does not remove them: of two runs that agree up to rounding, a reward beside an edge can still choose another. A
candidate whose reward is not finite (its scoring failed) is no rule's choice: such candidates come last, lower index
first, and only where the others are fewer than K.
"""

from __future__ import annotations

import math
from itertools import permutations
from typing import NamedTuple

import torch
from torch import Tensor

RESOLUTION, LAST_PLACES = 2.0**-16, 16
"""Rewards that differ by less count as equal: a part of their range, for float32 has 24 bits and the sums of a network
cost about 8; and so many units in the last place of the largest, where they hardly differ."""


class Selection(NamedTuple):
    """K of one prompt's N candidates.

    Args:
        indices: (K,) int64, all different, in the order of choice and not in that of the candidates.
        reason: K short texts, why each was chosen. Ranks in it count from 1 over all scored candidates.
    """

    indices: Tensor
    reason: tuple[str, ...]


class _Sorted(NamedTuple):
    scored: list[int]
    """Candidates with a finite reward, best first."""
    unscored: list[int]
    values: list[float]
    """Rewards of all candidates, rounded, in the order of the candidates."""


_Picks = list[tuple[int, str]]


def best_worst(rewards: Tensor, keep: int) -> Selection:
    """Return the K/2 best, best first, and then the K/2 worst, worst first; of an odd K the larger half are best.

    Sol-RL, arXiv 2604.06916.

    Args:
        rewards: (N,) in any unit.
        keep: K, in [1, N].

    Returns:
        Selection with reasons "best 1", "worst 3" (the third-worst), "unscored".

    Raises:
        ValueError: `rewards` is not (N,), or `keep` is outside [1, N].
    """
    ranked = _sort(rewards, keep)
    total = min(keep, len(ranked.scored))
    return _selection(_ends(ranked.scored, total - total // 2, total), ranked, rewards, keep)


def max_variance(rewards: Tensor, keep: int) -> Selection:
    """Select the K whose rewards have the largest variance: the j best and the K - j worst, for the best j.

        argmax over j in 0..K of Var(top j + bottom K - j)

    D3S; no other subset of K has a larger one (PODS, arXiv 2504.13818). Of splits that are equal up to rounding, it is
    the one with the most best candidates.

    Args:
        rewards: (N,) in any unit.
        keep: K, in [1, N].

    Returns:
        Selection: the best, best first, and then the worst, worst first, with reasons as in `best_worst`.

    Raises:
        ValueError: `rewards` is not (N,), or `keep` is outside [1, N].
    """
    ranked = _sort(rewards, keep)
    total = min(keep, len(ranked.scored))
    if total == 0:
        return _selection([], ranked, rewards, keep)
    ordered = torch.tensor([ranked.values[i] for i in ranked.scored], dtype=torch.float64)
    ordered = ordered - ordered.mean()
    # With the K worst laid before the K best, each split is a window: j entries further on, it holds j of the best.
    windows = torch.cat([ordered[len(ordered) - total :], ordered[:total]]).unfold(0, total, 1)
    variance = windows.var(dim=1, correction=0)
    best = int((variance >= variance.max() * (1.0 - 1e-12)).nonzero().max())
    return _selection(_ends(ranked.scored, best, total), ranked, rewards, keep)


def sibling_contrast(rewards: Tensor, keep: int, parent: Tensor, leaf: Tensor) -> Selection:
    """Return pairs of leaves that share all but a split's noise and differ most in reward.

        gap(node) = max over children a != b of (best reward below a) - (worst reward below b)

    The nodes with two children or more are walked by falling gap, the lower node first among equals, and both leaves of
    each gap are kept; one that is kept already is not kept twice. Where one place is left for two new leaves, the one
    farther from the mean of all finite rewards takes it (the better one if they are equally far). Where the walk ends
    early, as it does at once in a forest of chains, the best and the worst of the rest fill up in turn, best first.

    Candidates without a finite reward, and so nodes with fewer than two children that lead to one, are passed over.
    This rule is the project's own (METHODS.md, section 5); the other roots of a forest are no siblings.

    Args:
        rewards: (N,) in any unit.
        keep: K, in [1, N].
        parent: (M,) integer, the node above each node: -1 at roots, else below the node's own index. It may hold the
            trees of other prompts too: nodes without a candidate below do not matter.
        leaf: (N,) integer in [0, M), the node of each candidate.

    Returns:
        Selection with reasons "split at node 2: gap 0.41, better side", "fill: worst 3", "unscored".

    Raises:
        ValueError: `rewards`, `parent` or `leaf` has another shape or is out of range, or `keep` is outside [1, N].
    """
    ranked = _sort(rewards, keep)
    _check_tree(rewards, parent, leaf)
    total = min(keep, len(ranked.scored))
    centre = sum(ranked.values[i] for i in ranked.scored) / max(1, len(ranked.scored))
    kept: dict[int, str] = {}
    for node, gap, better, worse in _gaps(ranked, parent.tolist(), leaf.tolist()):
        why = f"split at node {node}: gap {gap:.3g}, "
        new = [(i, why + side) for i, side in ((better, "better side"), (worse, "worse side")) if i not in kept]
        if len(new) > total - len(kept):
            new = sorted(new, key=lambda pick: -abs(ranked.values[pick[0]] - centre))[: total - len(kept)]
        kept.update(new)
    picks = list(kept.items())
    return _selection(picks + _fill(ranked.scored, set(kept), total - len(kept)), ranked, rewards, keep)


def family_contrast(rewards: Tensor, keep: int, parent: Tensor, leaf: Tensor) -> Selection:
    """Return whole sibling families, from both sides of the splits whose children's values differ most.

        V(node) = mean reward of the leaves below it, gap(node) = max V(child) - min V(child)

    A leaf's family are the leaves that share its last split: step credit compares them there, so they are kept together
    or not at all. The nodes with two children or more are walked by falling gap, the lower node first among equals. A
    node at which leaves last split keeps their family. One further up keeps, below its best child and its worst, the
    family with the largest gap, unless one is kept there already. What has no room is passed over. The places that are
    left, fewer than a family, go to the best and the worst in turn of the families with the largest gaps, and where
    there are none, as in a forest of chains, to those of the rest.

    Candidates without a finite reward are no part of a family or a value. This rule is the project's own: BranchGRPO's
    tree (arXiv 2509.06040), chosen from as Sol-RL (arXiv 2604.06916) chooses from chains.

    Args:
        rewards: (N,) in any unit.
        keep: K, in [1, N].
        parent: (M,) integer, as in `sibling_contrast`.
        leaf: (N,) integer in [0, M), the node of each candidate.

    Returns:
        Selection with reasons "family of node 2: gap 0.41", "family below node 0: gap 0.3, better side", "fill: of the
        family of node 5, best 1", "fill: worst 3", "unscored".

    Raises:
        ValueError: `rewards`, `parent` or `leaf` has another shape or is out of range, or `keep` is outside [1, N].
    """
    ranked = _sort(rewards, keep)
    _check_tree(rewards, parent, leaf)
    total = min(keep, len(ranked.scored))
    tree = _families(ranked, parent.tolist(), leaf.tolist())
    kept: dict[int, dict[int, str]] = {}  # head of a family -> its candidates, and why
    for node in tree.by_gap:
        why = f"node {node}: gap {tree.gap[node]:.3g}"
        if node in tree.members:
            wanted = {node: f"family of {why}"}
        else:
            below = f"family below {why}"
            sides = ((tree.best[node], f"{below}, better side"), (tree.worst[node], f"{below}, worse side"))
            wanted = {tree.heads[side][0]: text for side, text in sides if not kept.keys() & set(tree.heads[side])}
        new = {head: text for head, text in wanted.items() if head not in kept}
        if sum(len(tree.members[head]) for head in new) <= total - sum(map(len, kept.values())):
            kept |= {head: dict.fromkeys(tree.members[head], text) for head, text in new.items()}
    picks = [pick for family in kept.values() for pick in family.items()]
    for head in (head for head in tree.by_gap if head in tree.members and head not in kept):
        part = _fill(tree.members[head], set(), min(total - len(picks), len(tree.members[head])))
        picks += [(i, f"fill: of the family of node {head}, {why.removeprefix('fill: ')}") for i, why in part]
    return _selection(picks + _fill(ranked.scored, {i for i, _ in picks}, total - len(picks)), ranked, rewards, keep)


def random_choice(rewards: Tensor, keep: int, order: Tensor) -> Selection:
    """Return the first K scored candidates of a random order; the order is passed in, so the choice is reproducible.

    Args:
        rewards: (N,) in any unit; only whether they are finite matters.
        keep: K, in [1, N].
        order: (N,) int64 permutation of 0..N-1, such as `torch.randperm(N, generator=generator)`.

    Returns:
        Selection with reasons "random" and "unscored".

    Raises:
        ValueError: `rewards` is not (N,), `keep` is outside [1, N], or `order` is no permutation of the candidates.
    """
    ranked = _sort(rewards, keep)
    rows = order.tolist() if order.ndim == 1 else []
    if sorted(rows) != list(range(len(rewards))):
        raise ValueError(f"order must be a permutation of 0..{len(rewards) - 1}. Got {order.tolist()}.")
    scored = set(ranked.scored)
    return _selection([(i, "random") for i in rows if i in scored][:keep], ranked, rewards, keep)


def largest(scores: Tensor, keep: int) -> Tensor:
    """Return (K,) int64 indices of the K largest scores, largest first; those that are not finite come last.

    Args:
        scores: (N,) in any unit.
        keep: K, in [1, N].

    Raises:
        ValueError: `scores` is not (N,), or `keep` is outside [1, N].
    """
    ranked = _sort(scores, keep)
    return torch.tensor([*ranked.scored, *ranked.unscored][:keep], dtype=torch.int64)


def select_all(rewards: Tensor) -> Selection:
    """Return every candidate, scored or not, in the order of the candidates.

    Args:
        rewards: (N,) with N at least 1.

    Returns:
        Selection with the reason "all".

    Raises:
        ValueError: `rewards` is not (N,), or empty.
    """
    _sort(rewards, keep=rewards.numel())
    return Selection(torch.arange(len(rewards), device=rewards.device), ("all",) * len(rewards))


def _sort(rewards: Tensor, keep: int) -> _Sorted:
    """Return the one sort that every rule rests on, and the checks that all share."""
    if rewards.ndim != 1:
        raise ValueError(f"rewards must be (N,), the candidates of one prompt. Got {tuple(rewards.shape)}.")
    if not 1 <= keep <= len(rewards):
        raise ValueError(f"keep must be in [1, N]. Got keep={keep} of N={len(rewards)} candidates.")
    finite, values = torch.isfinite(rewards), quantise(rewards)
    order = values.masked_fill(~finite, -torch.inf).sort(descending=True, stable=True).indices.tolist()
    scored = int(finite.sum())
    return _Sorted(order[:scored], order[scored:], values.tolist())


def quantise(rewards: Tensor) -> Tensor:
    """Round rewards to multiples of a power of two: the largest that is within `RESOLUTION` or `LAST_PLACES`.

    Args:
        rewards: (N,) in any unit.

    Returns:
        (N,) float64; what is not finite stays.
    """
    values, finite = rewards.double(), torch.isfinite(rewards)
    if not bool(finite.any()) or not rewards.is_floating_point():
        return values
    low, high = (float(x) for x in values[finite].aminmax())
    coarse = max((high - low) * RESOLUTION, max(-low, high) * LAST_PLACES * torch.finfo(rewards.dtype).eps)
    if coarse == 0.0:
        return values
    step = math.ldexp(0.5, math.frexp(coarse)[1])
    return torch.where(finite, (values / step).round() * step, values)


def _selection(picks: _Picks, ranked: _Sorted, rewards: Tensor, keep: int) -> Selection:
    picks = picks + [(i, "unscored") for i in ranked.unscored[: keep - len(picks)]]
    indices = torch.tensor([i for i, _ in picks], dtype=torch.int64, device=rewards.device)
    return Selection(indices, tuple(why for _, why in picks))


def _ends(scored: list[int], best: int, total: int) -> _Picks:
    """Return the `best` best, and the worst up to `total`."""
    worst = scored[::-1][: total - best]
    return [(i, f"best {rank}") for rank, i in enumerate(scored[:best], 1)] + [
        (i, f"worst {rank}") for rank, i in enumerate(worst, 1)
    ]


def _fill(scored: list[int], kept: set[int], count: int) -> _Picks:
    """Return `count` of those that are not kept yet: best, worst, best, and so on."""
    rest = [(i, rank) for rank, i in enumerate(scored) if i not in kept]
    picks: _Picks = []
    for turn in range(count):
        i, rank = rest.pop(0 if turn % 2 == 0 else -1)
        picks.append((i, f"fill: best {rank + 1}" if turn % 2 == 0 else f"fill: worst {len(scored) - rank}"))
    return picks


def _gaps(ranked: _Sorted, parent: list[int], leaf: list[int]) -> list[tuple[int, float, int, int]]:
    """Return (node, gap, best leaf below one child, worst leaf below another) of each split, by falling gap."""
    below: dict[int, dict[int, list[int]]] = {}  # node -> child -> scored candidates below it, best first
    for i in ranked.scored:
        child = leaf[i]
        while (node := parent[child]) >= 0:
            below.setdefault(node, {}).setdefault(child, []).append(i)
            child = node
    gaps = []
    for node in sorted(below):
        pairs = [(a[0], b[-1]) for a, b in permutations(below[node].values(), 2)]
        if pairs:
            better, worse = max(pairs, key=lambda pair: ranked.values[pair[0]] - ranked.values[pair[1]])
            gaps.append((node, ranked.values[better] - ranked.values[worse], better, worse))
    return sorted(gaps, key=lambda entry: -entry[1])


class _Families(NamedTuple):
    by_gap: list[int]
    """Nodes with two children or more that lead to scored candidates, by falling gap."""
    gap: dict[int, float]
    best: dict[int, int]
    """Node of `by_gap` -> the child with the largest mean reward below it."""
    worst: dict[int, int]
    members: dict[int, list[int]]
    """Node at which candidates last split -> these, best first."""
    heads: dict[int, list[int]]
    """Node -> those of `members` at it or below, by falling gap."""


def _families(ranked: _Sorted, parent: list[int], leaf: list[int]) -> _Families:
    below: dict[int, list[int]] = {}  # node -> scored candidates at it or below, best first
    for i in ranked.scored:
        node = leaf[i]
        while node >= 0:
            below.setdefault(node, []).append(i)
            node = parent[node]
    children: dict[int, list[int]] = {}
    for node in sorted(below):
        children.setdefault(parent[node], []).append(node)
    value = {node: sum(ranked.values[i] for i in rows) / len(rows) for node, rows in below.items()}
    splits = [node for node in children if node >= 0 and len(children[node]) > 1]
    best = {node: max(children[node], key=lambda child: value[child]) for node in splits}
    worst = {node: min(children[node], key=lambda child: value[child]) for node in splits}
    gap = {node: value[best[node]] - value[worst[node]] for node in splits}
    by_gap = sorted(splits, key=lambda node: (-gap[node], node))
    members: dict[int, list[int]] = {}
    for i in ranked.scored:
        node = parent[leaf[i]]
        while node >= 0 and node not in gap:
            node = parent[node]
        if node >= 0:
            members.setdefault(node, []).append(i)
    heads: dict[int, list[int]] = {}
    for head in (node for node in by_gap if node in members):
        node = head
        while node >= 0:
            heads.setdefault(node, []).append(head)
            node = parent[node]
    return _Families(by_gap, gap, best, worst, members, heads)


def _check_tree(rewards: Tensor, parent: Tensor, leaf: Tensor) -> None:
    if leaf.shape != rewards.shape or parent.ndim != 1:
        raise ValueError(
            "leaf must be (N,) as rewards, and parent (M,). "
            f"Got {tuple(leaf.shape)}, {tuple(rewards.shape)} and {tuple(parent.shape)}."
        )
    if parent.is_floating_point() or leaf.is_floating_point():
        raise ValueError(f"parent and leaf must hold integers. Got {parent.dtype} and {leaf.dtype}.")
    if bool((leaf < 0).any()) or bool((leaf >= len(parent)).any()):
        raise ValueError(f"leaf must name nodes in [0, {len(parent)}). Got {leaf.tolist()}.")
    if bool((parent < -1).any()) or bool((parent >= torch.arange(len(parent), device=parent.device)).any()):
        raise ValueError("parent must be -1 at roots and below the node's own index elsewhere.")
