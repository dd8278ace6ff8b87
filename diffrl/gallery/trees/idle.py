"""The last paragraph of a tree's story: what trained nothing, and why."""

from __future__ import annotations

from diffrl.gallery.trees.numbers import NOTHING, counted, known, push
from diffrl.gallery.trees.sentences import Paragraph, sentence
from diffrl.gallery.trees.splits import idle_splits, pulled, splits, train
from diffrl.gallery.trees.words import Sums, pushed, total
from diffrl.trees.record import TreeNode


def idle(given: Sums) -> Paragraph | None:
    """What trains nothing, and why."""
    told = []
    undrawn = sum(not node.drawn for node in given.leaves)
    audits = sum(node.leaf.audit for node in given.drawn_leaves if node.leaf)
    if undrawn:
        told.append(f"{counted(undrawn, 'candidate')} {_was(undrawn)} only explored.")
    if audits:
        told.append(f"{counted(audits, 'picture')} {_was(audits)} drawn only to check the ranking.")
    told += _left_out(given) or [*_equal(given), *_idle_steps(given), *_idle_samples(given)]
    return Paragraph("idle", "What does not train", [sentence(text) for text in told])


def _left_out(given: Sums) -> list[str]:
    """That no picture was used, and so the prompt was not."""
    samples = given.samples
    if not samples or any(node.leaf and known(node.leaf.advantage) for node in samples):
        return []
    failed = sum(not (node.leaf and known(node.leaf.total)) for node in samples)
    why = f"{counted(failed, 'picture')} could not be scored" if failed else "Too few pictures could be compared"
    if _any_pulled(given):
        return [f"{why}, so the whole prompt has no credit and is only pulled to the starting model."]
    return [f"{why}, so the whole prompt is left out of this update."]


def _any_pulled(given: Sums) -> bool:
    return (
        any(map(given.pulled, given.edges))
        or any(map(given.pulled_sample, given.samples))
        or any(map(pulled, splits(given)))
    )


def _equal_rewards(given: Sums) -> bool:
    rewards = [total(node) for node in given.scored if node.leaf and not node.leaf.audit]
    return len(rewards) > 1 and rewards[0] - rewards[-1] <= NOTHING


def _level_steps(given: Sums) -> bool:
    """Whether equal rewards are why no step has credit."""
    return _equal_rewards(given) and not any(push(edge.advantage) for edge in given.edges)


def _level_samples(given: Sums) -> bool:
    """The same of pictures that train by contrast, or pull at splits."""
    return _equal_rewards(given) and not any(push(node.leaf.advantage) for node in given.samples if node.leaf)


def _equal(given: Sums) -> list[str]:
    """That rewards without a difference teach nothing."""
    rule = given.record.rule
    what = ["steps"] if given.edges and rule.get("edges") and _level_steps(given) else []
    what += ["pictures"] if rule.get("samples") and _level_samples(given) else []
    what += ["splits"] if train(given) and _level_samples(given) else []
    if not what:
        return []
    teach = "are only pulled to the starting model" if _any_pulled(given) else "teach nothing"
    return [f"Equal rewards give no credit: all advantages are 0, and this prompt's {' and '.join(what)} {teach}."]


def _idle_steps(given: Sums) -> list[str]:
    """Steps that are not pushed, by why."""
    edges, rule = given.edges, given.record.rule
    if not edges:
        return []
    if not rule.get("edges"):
        if train(given):
            return idle_splits(given, _level_samples(given))
        return [f"{_whole(len(edges))}: with this objective only finished pictures train."]
    count = dict.fromkeys(("pruned", "audits", "failed", "pulled", "level"), 0)
    for edge in edges:
        if not pushed(edge):
            count[_why_not(given, edge)] += 1
    pruned = "left out by pruning" if rule.get("prune") else "not in the gradient"
    told = [f"{_of(count['pruned'], len(edges))} {_was(count['pruned'])} {pruned}."] if count["pruned"] else []
    if n := count["audits"]:
        told.append(f"{counted(n, 'step')} {'leads' if n == 1 else 'lead'} only to audits.")
    if n := count["failed"]:
        told.append(f"{counted(n, 'step')} {'leads' if n == 1 else 'lead'} to no picture that counts.")
    if _level_steps(given):
        return told
    if lone := _lone_splits(given):
        text = "only one branch leads to a picture that counts, which leaves nothing to compare it with"
        told.append(f"At {counted(lone, 'split')} {text}.")
    if n := count["pulled"]:
        told.append(f"{counted(n, 'step')} with advantage 0 {_is(n)} only pulled to the starting model.")
    if n := count["level"]:
        told.append(f"{counted(n, 'step')} {'has' if n == 1 else 'have'} advantage 0.")
    return told


def _why_not(given: Sums, edge: TreeNode) -> str:
    if edge.pruned if edge.pruned is not None else push(edge.advantage):
        return "pruned"
    if given.pulled(edge):
        return "pulled"
    if not given.usable_below(edge):
        below = [leaf.leaf for leaf in given.leaves_below(edge) if leaf.leaf]
        return "audits" if below and all(leaf.audit for leaf in below) else "failed"
    return "pruned" if given.pulls else "level"  # where the reference pulls, a step without advantage trains as well


def _idle_samples(given: Sums) -> list[str]:
    """Scored pictures that have no part in the contrast, by why."""
    samples = [node for node in given.samples if node.leaf and known(node.leaf.total)]
    if not given.record.rule.get("samples"):
        return []
    level = [node for node in samples if node.leaf and not push(node.leaf.advantage)]
    out = sum(bool(node.leaf and not node.leaf.trained) for node in samples if node not in level)
    told = [f"{counted(out, 'scored picture')} took no part in the contrast."] if out else []
    if _level_samples(given):
        return told
    pulled = sum(map(given.pulled_sample, level))
    if pulled:
        told.append(f"{counted(pulled, 'picture')} with advantage 0 {_is(pulled)} only pulled to the starting model.")
    if n := len(level) - pulled:
        told.append(f"{counted(n, 'picture')} with advantage 0 {'pulls' if n == 1 else 'pull'} neither way.")
    return told


def _lone_splits(given: Sums) -> int:
    """Splits of which one branch is left, where credit rests on the difference between branches."""
    rule = given.record.rule
    stepwise = rule.get("reward") in ("incremental", "turning_point")
    if rule.get("value", "leaves") != "leaves" or not (stepwise or rule.get("normalise") == "siblings"):
        return 0
    alive = [
        sum(bool(given.usable_below(given.record.nodes[child])) for child in below)
        for parent, below in given.children.items()
        if parent is not None and len(below) > 1
    ]
    return alive.count(1)


def _whole(count: int) -> str:
    return "The one step does not train" if count == 1 else f"The {count:,} steps do not train"


def _of(part: int, whole: int) -> str:
    return f"{part:,} of {counted(whole, 'step')}"


def _was(count: int) -> str:
    return "was" if count == 1 else "were"


def _is(count: int) -> str:
    return "is" if count == 1 else "are"
