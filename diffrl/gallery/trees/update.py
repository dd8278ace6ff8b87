"""What an update made of the steps, of whole paths and of splits; and what trained nothing, and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from diffrl.credit.rules import recorded_rule
from diffrl.gallery.trees.facts import against, amount, split_facts
from diffrl.gallery.trees.numbers import NOTHING, compact, known, number, push
from diffrl.gallery.trees.sections import Fact, Section, counts, fact, naming
from diffrl.gallery.trees.view import PULLED, TreeView, total
from diffrl.trees.record import TreeNode

COMPROMISE = (
    "One network serves all steps, images and prompts, and an update is a compromise between them: not every step "
    "goes where it is pushed."
)
Rows = list[tuple[str, int | str]]


def update(view: TreeView) -> Section:
    """Tell whether steps and paths became more or less likely, as their advantages asked."""
    measured = [edge for edge in view.edges if known(edge.log_ratio)]
    facts, label, text = [*_behind(view), *_predictions(view)], "Change of log-likelihood", ""
    if not view.edges:
        facts.append(fact(label, "none to measure: no step adds noise"))
    elif not measured:
        facts.append(fact(label, "not recorded"))
    elif max(map(_size, measured)) <= view.rounding:
        facts.append(fact(label, f"≈ 0 at all {len(measured)} measured steps"))
    else:
        text = COMPROMISE
        if view.record.rule.get("edges"):
            facts += _steps(view, measured)
        elif not view.trains_splits:
            facts.append(fact("What trains", "the finished images; steps are only measured"))
        facts += _paths(view)
    return Section("update", "What the update did", facts, text)


def _behind(view: TreeView) -> list[Fact]:
    """Tell how many prompts and updates there were, at which learning rate, and what a guard left out."""
    rule, (out, updates) = view.record.rule, view.skipped
    prompts, rate = round(number(rule.get("prompts"))), number(rule.get("learning_rate"))
    at = f"; learning rate {compact(rate)}" if rate else ""
    behind = f"{updates}, each from {prompts} prompts{at}" if prompts and updates else 0
    return counts([("Updates", behind), ("Left out by a guard", f"{out} of {updates} updates" if out else 0)])


def _predictions(view: TreeView) -> list[Fact]:
    """Tell how many predictions went along their directions, and how far those of the longest went."""
    if not view.trains_splits:
        return []
    active = [node for node in view.splits if view.split_trains(node) == "yes"]
    cosines = [node.update_effect.cosine for node in active if node.update_effect]
    along = [number(cosine) > 0 for cosine in cosines if known(cosine)]

    def far(node: TreeNode) -> str:
        facts = {one.label: one.value + one.note for one in split_facts(view, node)}
        return f"moved {facts.get('Moved', '–')}, cosine {facts.get('Cosine', '–')}"

    facts = [fact("What trains", "the splits; steps are only measured")]
    if along:
        facts.append(fact("Predictions that moved along their direction", f"{sum(along)} of {len(along)}"))
    return facts + naming("Longest directions, at", active, far)


def _steps(view: TreeView, measured: Sequence[TreeNode]) -> list[Fact]:
    """Tell how many of the pushed steps went there, which moved most, and a side effect that is larger still."""
    bound, pushed = view.rounding, [edge for edge in measured if view.step_trains(edge) == "yes"]
    facts = _counts("Steps pushed", ("up", "down"), [(push(e.advantage), number(e.log_ratio), bound) for e in pushed])
    facts += counts([("Of these steps, moved by rounding alone", sum(_size(edge) <= bound for edge in pushed))])
    most = max(pushed, key=_size, default=None)
    if most is not None:
        rest = ", against its push" * against(view, most)
        facts.append(_moved(view, "Moved most", most, number(most.log_ratio), rest))
    aside = max((edge for edge in measured if edge not in pushed), key=_size, default=None)
    if aside is not None and _size(aside) > max(bound, _size(most) if most is not None else 0.0):
        facts.append(_moved(view, "Moved more, though nobody pushed it", aside, number(aside.log_ratio)))
    return facts


def _paths(view: TreeView) -> list[Fact]:
    """Tell how many paths to images with an advantage went its way, and the strongest contradictions.

    A path's change is the sum of the log-ratios of its steps; nothing is said where one of them was not measured.
    """
    moved: dict[int, tuple[int, float, float]] = {}
    for node in view.scored:
        way = push(node.leaf.advantage) if node.leaf and not node.leaf.audit else 0
        ratios = [edge.log_ratio for edge in view.path(node) if edge.parent is not None]
        if way and not (ratios and all(map(known, ratios))):
            return []
        if way:
            moved[node.id] = way, sum(map(number, ratios)), view.rounding * len(ratios)
    facts = _counts("Paths to images with an advantage", ("above 0", "below 0"), list(moved.values()))
    astray = [view.record.nodes[id] for id, (way, change, bound) in moved.items() if -way * change > bound]
    for way, label, pick in ((-1, "Best image whose path became less likely", max),
                             (1, "Worst image whose path became more likely", min)):  # fmt: skip
        if ends := [(round(total(n), 6), -moved[n.id][1], n.id) for n in astray if moved[n.id][1] * way > 0]:
            node = view.record.nodes[pick(ends)[2]]
            facts.append(_moved(view, label, node, moved[node.id][1], f", reward {total(node):.3f}"))
    return facts


def _counts(what: str, where: tuple[str, str], moved: Sequence[tuple[int, float, float]]) -> list[Fact]:
    """Count what was asked to go up and down, and what did: by way, change and the size that counts as none."""
    facts = []
    for way, side, likely in ((1, where[0], "more"), (-1, where[1], "less")):
        alike = [way * change > bound for asked, change, bound in moved if asked == way]
        if alike:
            facts.append(fact(f"{what} {side}", f"{len(alike):,}; {sum(alike):,} became {likely} likely"))
    return facts


def _moved(view: TreeView, label: str, node: TreeNode, ratio: float, rest: str = "") -> Fact:
    """Tell a node and how its step's or path's log-likelihood changed."""
    return fact(label, node, f": {''.join(amount(view, ratio))}{rest}")


def _size(edge: TreeNode) -> float:
    return abs(number(edge.log_ratio))


# --- what trains nothing


def idle(view: TreeView) -> Section:
    """Tell what trains nothing, and why."""
    rows: Rows = [
        ("Candidates only explored", sum(not node.sampled for node in view.leaves)),
        ("Images only to check the ranking", len(view.sampled_leaves) - len(view.samples)),
    ]
    rows += _whole_prompt(view) or [*_equal_rewards(view), *_idle_steps(view), *_idle_images(view)]
    return Section("idle", "What does not train", counts(rows))


def _whole_prompt(view: TreeView) -> Rows:
    """Tell that no image was used, and so the prompt was not."""
    leaves = [node.leaf for node in view.samples if node.leaf]
    if not leaves or any(known(leaf.advantage) for leaf in leaves):
        return []
    failed = sum(not known(leaf.total) for leaf in leaves)
    why = f"{failed} of {len(leaves)} images could not be scored" if failed else "too few images to compare"
    return [("The whole prompt", f"{PULLED if _any_pulled(view) else 'left out of this update'}: {why}")]


def _any_pulled(view: TreeView) -> bool:
    states = [*map(view.step_trains, view.edges), *map(view.sample_trains, view.samples)]
    return PULLED in (*states, *map(view.split_trains, view.splits))


def _level(view: TreeView, images: bool) -> bool:
    """Return whether equal rewards are why no image, or no step, has credit."""
    rewards = [total(node) for node in view.scored if node.leaf and not node.leaf.audit]
    if len(rewards) < 2 or rewards[0] - rewards[-1] > NOTHING:
        return False
    steps = [edge.advantage for edge in view.edges]
    return not any(map(push, [node.leaf.advantage for node in view.samples if node.leaf] if images else steps))


def _equal_rewards(view: TreeView) -> Rows:
    """Tell that rewards without a difference teach nothing."""
    rule = view.record.rule
    level = {
        "steps": view.edges and rule.get("edges") and _level(view, images=False),
        "images": rule.get("samples") and _level(view, images=True),
        "splits": view.trains_splits and _level(view, images=True),
    }
    what = ", ".join(name for name, is_level in level.items() if is_level)
    taught = PULLED if _any_pulled(view) else "no credit"
    return [(f"Equal rewards, so advantages are 0: {what}", taught)] if what else []


def _idle_steps(view: TreeView) -> Rows:
    """Count steps, or splits, that are not pushed, by why; equal rewards are a reason that is told once."""
    edges, rule = view.edges, view.record.rule
    if view.trains_splits:
        reasons = Counter(why for node in view.splits if (why := view.idle_split(node)))
        rows: Rows = [] if _level(view, images=True) else [(f"Splits: {why}", n) for why, n in reasons.items()]
        return [*rows, (f"Splits {PULLED}", sum(view.split_trains(node) == PULLED for node in view.splits))]
    if not rule.get("edges"):
        return [("Steps: with this objective only finished images train", len(edges))]
    count = Counter(_why(view, edge) for edge in edges if view.step_trains(edge) != "yes")
    pruned = "left out by pruning" if rule.get("prune") else "not in the gradient"
    rows = [
        (f"Steps {pruned}", f"{count['pruned']} of {len(edges)}" if count["pruned"] else 0),
        ("Steps that lead only to audits", count["audits"]),
        ("Steps that lead to no image that counts", count["failed"]),
    ]
    level: Rows = [
        ("Splits with one branch that counts, nothing to compare it with", _single_child_splits(view)),
        (f"Steps with advantage 0, {PULLED}", count[PULLED]),
        ("Steps with advantage 0", count["level"]),
    ]
    return rows if _level(view, images=False) else rows + level


def _why(view: TreeView, edge: TreeNode) -> str:
    """Return why a step is not pushed."""
    if edge.pruned if edge.pruned is not None else push(edge.advantage):
        return "pruned"
    if view.step_trains(edge) == PULLED:
        return PULLED
    if not view.usable_below(edge):
        below = [leaf.leaf for leaf in view.leaves_below(edge) if leaf.leaf]
        return "audits" if below and all(leaf.audit for leaf in below) else "failed"
    return "pruned" if view.pulls_steps else "level"  # where the reference pulls, a step without advantage trains too


def _idle_images(view: TreeView) -> Rows:
    """Count scored images that have no part in the contrast, by why."""
    if not view.record.rule.get("samples"):
        return []
    scored = [node for node in view.samples if node.leaf and known(node.leaf.total)]
    level = [node for node in scored if node.leaf and not push(node.leaf.advantage)]
    only_pulled = sum(view.sample_trains(node) == PULLED for node in level)
    out = sum(view.sample_trains(node) == "no" for node in scored) - (len(level) - only_pulled)
    rows: Rows = [("Scored images that took no part in the contrast", out)]
    neither: Rows = [
        (f"Images with advantage 0, {PULLED}", only_pulled),
        ("Images with advantage 0, which pull neither way", len(level) - only_pulled),
    ]
    return rows if _level(view, images=True) else rows + neither


def _single_child_splits(view: TreeView) -> int:
    """Count splits of which one branch is left, where credit rests on the difference between branches."""
    rule = view.record.rule
    stepwise = recorded_rule(rule.get("reward")).differences
    if rule.get("value", "leaves") != "leaves" or not (stepwise or rule.get("normalise") == "siblings"):
        return 0
    splits = [below for node in view.record.nodes if len(below := view.below(node)) > 1]
    return sum(sum(bool(view.usable_below(child)) for child in below) == 1 for below in splits)
