"""The paragraph on what an update made of the steps: whether they became as likely as their advantages asked."""

from __future__ import annotations

from collections.abc import Sequence

from diffrl.gallery.trees.numbers import compact, counted, known, likelier, number, push, tiny, weak
from diffrl.gallery.trees.outcomes import outcomes
from diffrl.gallery.trees.sentences import Paragraph, Ref, Sentence, sentence
from diffrl.gallery.trees.splits import moves, train
from diffrl.gallery.trees.words import Sums, pushed, rounding, skipped, unclear, whole_change
from diffrl.trees.record import TreeNode

MOST_WENT = 0.8
"""Share of the pushed steps that go where they are pushed if nothing needs to be explained."""


def update(given: Sums) -> Paragraph | None:
    """Whether steps became more or less likely, as their advantages asked."""
    title, edges, rule = "What the update did", given.edges, given.record.rule
    measured = [edge for edge in edges if known(edge.log_ratio)]
    told = [*_whole(given), *_skipped(given), *moves(given)]
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
        if not train(given):
            measured_only = "The contrast trains finished pictures here; the steps are only measured, not trained."
            told.append(sentence(measured_only))
        told += _paths_alone(given)
    else:
        told += _moves(given, measured)
    return Paragraph("update", title, told)


def _whole(given: Sums) -> list[Sentence]:
    """How many prompts the update was made from, and at which learning rate."""
    rule, (out, updates) = given.record.rule, skipped(given.record)
    prompts, rate = round(number(rule.get("prompts"))), number(rule.get("learning_rate"))
    if prompts < 1 or updates < 1 or out >= updates:
        return []
    at = f" (learning rate {compact(rate)})" if rate else ""
    if prompts == 1:
        return [sentence(f"{'A single update' if updates == 1 else f'{updates} updates'} from this prompt alone{at}.")]
    behind = "a single update" if updates == 1 else f"each of the {updates} updates"
    return [sentence(f"This prompt is one of the {prompts} behind {behind}{at}.")]


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
    for way, where, likely in ((1, "up", "more"), (-1, "down", "less")):
        if alike := [edge for edge in asked if push(edge.advantage) == way]:
            went = sum(way * (edge.log_ratio or 0) > bound for edge in alike)
            told.append(sentence(f"Of the {counted(len(alike), 'step')} pushed {where} {went} became {likely} likely."))
    if still:
        told.append(sentence(f"The change of {counted(still, 'step')} is {unclear(given.record)}."))
    if not asked:
        told.append(sentence("No step here asked for a change."))
    most, verb = max(asked or measured, key=_size), ", became " if len(asked) == 1 else " changed most: "
    against = bool(asked) and _against(most, bound)
    told.append(
        sentence(
            "Of the pushed steps, " if len(asked) > 1 else "The pushed step, " if asked else "",
            Ref(most.id, given.names[most.id]),
            f"{verb}{_amount(given, most)}{', against its push' if against and not weak(most.advantage) else ''}.",
        )
    )  # fmt: skip
    aside = _aside(measured, most, bound) if asked else None
    if aside is not None:
        told.append(
            sentence(
                "A step that nobody pushed changed more: ", Ref(aside.id, given.names[aside.id]),
                f", {_amount(given, aside)}.",
            )
        )  # fmt: skip
    paths = outcomes(given, most)
    told += paths.told
    astray = sum(_size(edge) > bound and not _against(edge, bound) for edge in asked) < MOST_WENT * len(asked)
    odd = astray or against or paths.astray or aside is not None
    if asked and odd and any(_size(edge) > bound for edge in measured):
        told.append(sentence(_why(given)))
    return told


def _paths_alone(given: Sums) -> list[Sentence]:
    """What became of the paths where steps do not train, and why they may not follow their pictures."""
    paths = outcomes(given)
    serves = "pictures" if number(given.record.rule.get("prompts")) == 1 else "pictures and prompts of the iteration"
    text = (
        f"Paths need not follow: one network serves all {serves}, and one update is a compromise between all of them."
    )
    return [*paths.told, *([sentence(text)] if paths.astray else [])]


def _why(given: Sums) -> str:
    """Why steps do not all go where they are pushed."""
    alone = number(given.record.rule.get("prompts")) == 1
    shared = "one network serves all steps" + ("" if alone else " and prompts of the iteration")
    also = ", the contrast of pictures trains it too" if given.record.rule.get("samples") else ""
    way = "and one update is a compromise between all of them"
    return f"Steps need not go where they are pushed: {shared}{also}, {way}."


def _amount(given: Sums, edge: TreeNode) -> str:
    """How much likelier a step became; per dimension where their number is not known."""
    if (whole := whole_change(given, edge)) is None:
        more = "more" if (edge.log_ratio or 0.0) > 0 else "less"
        return f"{more} likely (log-likelihood {tiny(edge.log_ratio)} per dimension)"
    return f"{likelier(whole)} (log-likelihood {tiny(whole)})"


def _aside(measured: Sequence[TreeNode], most: TreeNode, bound: float) -> TreeNode | None:
    """A step that nobody pushed and that moved more than all that were."""
    others = [edge for edge in measured if not pushed(edge)]
    aside = max(others, key=_size, default=None)
    return aside if aside is not None and _size(aside) > max(_size(most), bound) else None


def _against(edge: TreeNode, bound: float) -> bool:
    return _size(edge) > bound and push(edge.advantage) * (edge.log_ratio or 0.0) < 0


def _size(edge: TreeNode) -> float:
    return abs(edge.log_ratio or 0.0)
