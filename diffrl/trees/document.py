"""One prompt's rollout as a document: its nodes, what they were worth, why samples were chosen, what trained."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from diffrl.config.objective import ObjectiveSettings
from diffrl.config.schema import Config
from diffrl.credit.rules import recorded_rule
from diffrl.records import Credit, CreditDetail, Forest, Rollout, Samples
from diffrl.rollout.tree import paths_to, sample_paths
from diffrl.trees.record import TreeLeaf, TreeNode, TreeRecord

NODE = re.compile(r"\bnode (\d+)\b")


@dataclass(frozen=True)
class Sketch:
    """A tree without images, and where its nodes come from; -1 is nowhere.

    Args:
        record: the document.
        node: of each node, its row in the rollout's forest.
        sample: of each node, the rollout's sample that grows from it.
        candidate: of each node, the pool's sample that grows from it.
    """

    record: TreeRecord
    node: Sequence[int]
    sample: Sequence[int]
    candidate: Sequence[int]


def trained_edges(objective: ObjectiveSettings, rollout: Rollout, credit: Credit, kept: Tensor) -> Tensor:
    """Return (N,) bool, the nodes whose edge was in the loss: recorded, not pruned, and credited or pulled."""
    trained = torch.zeros_like(kept)
    if objective.trains_steps:
        trained[rollout.edges.node.cpu()] = True
        if not objective.trains_uncredited("steps"):
            trained &= credit.advantage != 0
    return trained & kept


def trained_samples(objective: ObjectiveSettings, credit: Credit) -> Tensor:
    """Return (S,) bool, the samples that were in the loss as a whole with a weight: used, and credited or pulled."""
    if not objective.trains_samples:
        return torch.zeros_like(credit.used)
    return credit.used if objective.trains_uncredited("samples") else credit.used & (credit.outcome != 0)


def sketch(
    config: Config,
    samples: Samples,
    credit: Credit,
    kept: Tensor,
    ratio: Tensor,
    row: int,
    rule: Mapping[str, Any],
    weights: Mapping[str, Mapping[str, float]],
) -> Sketch:
    """Return one prompt's tree: the pool's where there is one, else the rollout's.

    Args:
        config: of the run.
        samples: what the iteration drew.
        credit: what it deserved.
        kept: (N,) bool, False where pruning took the edge out of the gradient.
        ratio: (N,) log-ratio of the edge that ends in each node of the rollout, NaN where it was not measured.
        row: of the prompt in the batch.
        rule: how credit was given, as `rule_of` puts it.
        weights: of the iteration's rewards, as `weights_of` puts it.
    """
    forest, redrawn, sample_of = _shown(samples)
    rows = torch.nonzero(forest.prompt == row).flatten()
    number = {node: i for i, node in enumerate(rows.tolist())}
    leaves = _leaves(
        objective=config.objective, samples=samples, credit=credit, forest=forest, sample_of=sample_of, number=number
    )
    values, credited, advantages, ratios = (
        _numbers(column) for column in (credit.values, credit.step_reward, credit.advantage, ratio)
    )
    detail = credit.detail
    assert detail is not None
    centres, spreads = _numbers(detail.centre), _numbers(detail.spread)
    trains = trained_edges(config.objective, samples.rollout, credit, kept).tolist()
    used = paths_to(samples.rollout.forest, torch.nonzero(credit.used).flatten())
    pruned, places = (used & ~kept).tolist(), redrawn[rows].tolist()
    turns = _turns(detail, places) if recorded_rule(rule.get("reward")).by_turns else None
    turning, sigmas = credit.turning.tolist(), [_digits(sigma) for sigma in samples.rollout.sigmas.tolist()]
    shape = zip(*(c[rows].tolist() for c in (forest.parent, forest.step, forest.child, forest.root)), strict=True)
    nodes = []
    for i, ((parent, step, child, root), index, node) in enumerate(zip(shape, places, number, strict=True)):
        is_sampled, is_edge = index >= 0, index >= 0 and parent >= 0
        nodes.append(
            TreeNode(
                id=i,
                parent=number[parent] if parent >= 0 else None,
                root=root,
                child=child,
                step=step if step >= 0 else None,
                sigma=sigmas[step + 1],
                sampled=is_sampled,
                value=values[index] if is_sampled else None,
                credited=credited[index] if is_edge else None,
                advantage=advantages[index] if is_edge else None,
                turning=is_edge and turning[index],
                trained=is_edge and trains[index],
                log_ratio=ratios[index] if is_edge else None,
                centre=centres[index] if is_edge else None,
                spread=spreads[index] if is_edge else None,
                turns=turns.get(index, {}) if turns is not None and is_edge else None,
                pruned=pruned[index] if is_edge else None,
                leaf=leaves[node][0] if node in leaves else None,
            )
        )
    batch = samples.rollout.batch
    record = TreeRecord(
        iteration=batch.iteration,
        group=batch.groups[row],
        prompt=batch.prompts[row].text,
        seed=config.run.seed,
        sigmas=sigmas,
        branching=dict(forest.branching),
        rule=rule,
        explored=samples.explored,
        nodes=nodes,
        metadata=dict(batch.prompts[row].beside),
        weights=weights,
        sampled_by=samples.sampled_by,
    )
    regenerated = [leaves[node][1] if node in leaves else -1 for node in number]
    candidates = [leaves[node][2] if node in leaves and samples.exploration else -1 for node in number]
    return Sketch(record, places, regenerated, candidates)


def _shown(samples: Samples) -> tuple[Forest, Tensor, Tensor]:
    """Return the forest that is shown, and the rollout's row of each of its nodes (N,) and samples (S,)."""
    forest = samples.rollout.forest
    if samples.exploration is None or samples.chosen is None:
        return forest, torch.arange(len(forest.parent)), torch.arange(len(forest))
    pool, again = samples.exploration.forest, samples.chosen.samples
    paths = paths_to(pool, again)
    sample = torch.full((len(pool),), -1)
    sample[again] = torch.arange(len(again))
    return pool, torch.where(paths, paths.cumsum(0) - 1, -1), sample


def _leaves(
    objective: ObjectiveSettings,
    samples: Samples,
    credit: Credit,
    forest: Forest,
    sample_of: Tensor,
    number: Mapping[int, int],
) -> dict[int, tuple[TreeLeaf, int, int]]:
    """Return what is known of each node that a sample grows from, its row in the rollout or -1, and its sample."""
    table, chosen, paths = samples.table, samples.chosen, sample_paths(forest)
    totals, outcomes, used = _numbers(table.total), _numbers(credit.outcome), credit.used.tolist()
    assert credit.detail is not None
    centres, spreads = _numbers(credit.detail.sample_centre), _numbers(credit.detail.sample_spread)
    rewards = {name: _numbers(column) for name, column in {**table.raw, **table.parts}.items()}
    trained = trained_samples(objective, credit).tolist()
    proxy = samples.exploration.proxy if samples.exploration else None
    proxies = _numbers(proxy.total) if proxy else []
    leaves = {}
    for sample, node in enumerate(forest.leaf.tolist()):
        if node not in number:
            continue
        row = int(sample_of[sample])
        leaf = TreeLeaf(path=paths[sample])
        if proxy:
            leaf = replace(leaf, proxy=proxies[sample], error=proxy.errors[sample])
        if row >= 0:
            leaf = replace(
                leaf,
                total=totals[row],
                rewards={name: column[row] for name, column in rewards.items()},
                notes=table.notes_of(row),
                error=table.errors[row] or leaf.error,
                advantage=outcomes[row] if used[row] else None,
                trained=trained[row],
                centre=centres[row] if used[row] else None,
                spread=spreads[row] if used[row] else None,
            )
        if row >= 0 and chosen:
            leaf = replace(leaf, chosen=reworded(chosen.reason[row], number), audit=bool(chosen.audit[row]))
        leaves[node] = (leaf, row, sample)
    return leaves


def _turns(detail: CreditDetail, places: Sequence[int]) -> dict[int, dict[int, bool]]:
    """Return for each row at which paths turn their samples' nodes in the record, and whether kept.

    Args:
        detail: of the rollout's credit.
        places: of each node of the record, its row in the rollout's forest; -1 is nowhere.
    """
    number = {row: i for i, row in enumerate(places) if row >= 0}
    turns: dict[int, dict[int, bool]] = {}
    columns = detail.turn_node.tolist(), detail.turn_leaf.tolist(), detail.turn_kept.tolist()
    for node, leaf, kept in zip(*columns, strict=True):
        if node in number:
            turns.setdefault(node, {})[number[leaf]] = kept
    return turns


def reworded(reason: str, number: Mapping[int, int]) -> str:
    """Return a reason that names a node of the whole pool, with the node's number in the record instead."""
    return NODE.sub(lambda match: f"node {number[int(match[1])]}", reason)


def _digits(value: float) -> float:
    """Return a float32 in the digits that it has."""
    return float(f"{value:.8g}")


def _numbers(column: Tensor) -> list[float | None]:
    """Return a column with None for NaN and infinity, which JSON lacks."""
    return [_digits(value) if math.isfinite(value) else None for value in column.tolist()]
