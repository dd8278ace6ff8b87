"""The paragraph on what an update made of the steps: whether they became as likely as their advantages asked."""

from __future__ import annotations

from collections.abc import Sequence

from diffrl.gallery.tree_numbers import NOTHING, counted, factor, known, likelier, number, push, tiny
from diffrl.gallery.tree_sentences import Paragraph, Ref, Sentence, sentence
from diffrl.gallery.tree_words import Sums, pushed, rounding, skipped, total, unclear, whole_change
from diffrl.tracking.trees import TreeNode

MOST_WENT = 0.8
"""Share of the pushed steps that go where they are pushed if nothing needs to be explained."""


def update(given: Sums) -> Paragraph | None:
    """Whether steps became more or less likely, as their advantages asked."""
    title, edges, rule = "What the update did", given.edges, given.record.rule
    measured = [edge for edge in edges if known(edge.log_ratio)]
    told = [*_whole(given), *_skipped(given)]
    if not edges:
        text = "No noise was added on the way, so there is no step whose likelihood could be compared before and after."
        told.append(sentence(text))
    elif not measured:
        told.append(sentence("How likely the steps were after it was not recorded."))
    elif not any(edge.log_ratio for edge in measured):
        told.append(sentence("The update left every measured step as likely as it was."))
    elif max(map(_size, measured)) <= rounding(given.record):
        told.append(
            sentence(f"What it changed is {unclear(given.record)}: no measured step moved by more than rounding.")
        )
    elif not rule.get("edges"):
        told.append(sentence("The contrast trains finished pictures here; the steps are only measured, not trained."))
    else:
        told += _moves(given, measured)
    return Paragraph("update", title, told)


def _whole(given: Sums) -> list[Sentence]:
    """How many prompts the update was made from, and at which learning rate."""
    rule, (out, updates) = given.record.rule, skipped(given.record)
    prompts, rate = round(number(rule.get("prompts"))), number(rule.get("learning_rate"))
    if prompts < 1 or updates < 1 or out >= updates:
        return []
    at = f"{' at' if prompts == 1 else ', at'} a learning rate of {factor(rate)}" if rate else ""
    many = "One update" if updates == 1 else f"{updates} updates"
    if prompts == 1:
        return [sentence(f"{many} from this prompt alone{at}.")]
    each = "" if updates == 1 else ", each from a share of every prompt"
    return [sentence(f"{many} from {prompts} prompts{at}{each}; this is one of them.")]


def _skipped(given: Sums) -> list[Sentence]:
    """That a guard left updates out."""
    out, updates = skipped(given.record)
    if not out:
        return []
    if out < updates:
        return [sentence(f"A guard left out {out} of the {updates} updates of this iteration.")]
    every = "the update" if updates == 1 else f"all {updates} updates"
    return [sentence(f"A guard left out {every} of this iteration.")]


def _moves(given: Sums, measured: Sequence[TreeNode]) -> list[Sentence]:
    """Of steps that were pushed how many went where they were pushed, which moved most, and why they may not follow."""
    bound, told = rounding(given.record), []
    asked = [edge for edge in measured if pushed(edge)]
    still = sum(_size(edge) <= bound for edge in asked)
    for way, signed, likely in ((1, "positive", "more"), (-1, "negative", "less")):
        if alike := [edge for edge in asked if push(edge.advantage) == way]:
            went = sum(way * (edge.log_ratio or 0) > bound for edge in alike)
            told.append(
                sentence(f"Of {counted(len(alike), 'step')} with {signed} advantage {went} became {likely} likely.")
            )
    if still:
        told.append(sentence(f"The change of {counted(still, 'step')} is {unclear(given.record)}."))
    if not asked:
        told.append(sentence("No step here asked for a change."))
    most = max(asked or measured, key=_size)
    against = bool(asked) and _against(most, bound)
    told.append(
        sentence(
            "The likelihood of the step to ", Ref(most.id, given.names[most.id]),
            f" changed most: {_amount(given, most)}{', against its push' if against else ''}.",
        )
    )  # fmt: skip
    aside = _aside(measured, most, bound) if asked else None
    if aside is not None:
        told.append(
            sentence(
                "The step to ", Ref(aside.id, given.names[aside.id]),
                f", which nobody pushed, moved even more ({tiny(aside.log_ratio)}).",
            )
        )  # fmt: skip
    loser = _loser(given, most, bound) if asked else []
    told += loser
    astray = sum(_size(edge) > bound and not _against(edge, bound) for edge in asked) < MOST_WENT * len(asked)
    if asked and (astray or against or loser or aside is not None) and any(_size(edge) > bound for edge in measured):
        told.append(sentence(_why(given)))
    return told


def _why(given: Sums) -> str:
    """Why steps do not all go where they are pushed."""
    alone = number(given.record.rule.get("prompts")) == 1
    shared = "one network serves all steps" + ("" if alone else " and prompts of the iteration")
    also = ", the contrast of pictures trains it too" if given.record.rule.get("samples") else ""
    way = "and it goes a small way along the sum of all pushes"
    return f"Steps need not go where they are pushed: {shared}{also}, {way}."


def _amount(given: Sums, edge: TreeNode) -> str:
    """A change per dimension and over all of them, and what that makes of the likelihood."""
    if (whole := whole_change(given, edge)) is None:
        return f"{tiny(edge.log_ratio)} in its logarithm, per dimension"
    count = round(number(given.record.rule.get("dimensions")))
    own = f"{tiny(edge.log_ratio)} in its logarithm per dimension"
    return f"{own}, × {count:,} dimensions {tiny(whole)}: {likelier(whole)}"


def _aside(measured: Sequence[TreeNode], most: TreeNode, bound: float) -> TreeNode | None:
    """A step that nobody pushed and that moved more than all that were."""
    others = [edge for edge in measured if not pushed(edge)]
    aside = max(others, key=_size, default=None)
    return aside if aside is not None and _size(aside) > max(_size(most), bound) else None


def _loser(given: Sums, most: TreeNode, bound: float) -> list[Sentence]:
    """That the way to the best picture became less likely, where it did: the picture that the story names."""
    found = given.scored
    if len(found) < 2 or found[0].leaf is None or push(found[0].leaf.advantage) <= 0:
        return []
    steps = [edge for edge in given.path(found[0]) if known(edge.log_ratio)]
    change = sum(edge.log_ratio or 0.0 for edge in steps)
    if not steps or change >= -bound:
        return []
    whole = [whole_change(given, edge) for edge in steps]
    amount = likelier(sum(one or 0.0 for one in whole)) if None not in whole else f"{tiny(change)} per dimension"
    told = "" if steps == [most] else f" ({amount})"
    ref = Ref(found[0].id, given.names[found[0].id])
    ties = total(found[0]) - total(found[1]) <= NOTHING
    best = "one of the best pictures" if ties else "the best picture"
    return [sentence(f"Even the path to {best}, ", ref, f", became less likely{told}.")]


def _against(edge: TreeNode, bound: float) -> bool:
    return _size(edge) > bound and push(edge.advantage) * (edge.log_ratio or 0.0) < 0


def _size(edge: TreeNode) -> float:
    return abs(edge.log_ratio or 0.0)
