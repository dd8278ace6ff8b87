"""What is wrong with the prompts of a run: trained on and held out at once, cut, or beyond what its rewards can score.

All of it is known before an image is; `diffrl check`, `diffrl plan` and the start of a run say the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from diffrl.config.schema import PromptSettings
from diffrl.data.normal import count_shared
from diffrl.data.worlds import TOYS
from diffrl.errors import ConfigError
from diffrl.models.text_encoders import TextReader
from diffrl.records import Prompt
from reward_models.common.errors import RewardError
from reward_models.common.messages import cut, quote
from reward_models.prompt_checks import asks_of, reading_of

if TYPE_CHECKING:  # a plan needs no torch
    from diffrl.rewards.score import WeightedScorer

MOST_UNSCORED = 0.1
"""Share of a list that a reward may be unable to score."""

SHOWN = 3


@dataclass
class PromptReport:
    """Sentences for the user.

    Args:
        notes: what is as it may be.
        problems: what the configuration does not allow.
    """

    notes: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    def joined(self, other: PromptReport) -> PromptReport:
        """Return this report followed by another one."""
        return PromptReport([*self.notes, *other.notes], [*self.problems, *other.problems])

    def require(self) -> None:
        """Refuse the problems.

        Raises:
            ConfigError: there are some.
        """
        if self.problems:
            raise ConfigError(self.problems)


def report_prompts(
    settings: PromptSettings,
    lists: Mapping[str, Sequence[Prompt]],
    scorers: Mapping[str, Sequence[WeightedScorer]],
) -> PromptReport:
    """Look at the prompts of a run; `add_encoders` adds how far the model reads them.

    Args:
        settings: what it may be like.
        lists: prompts that are used, by their place in the configuration.
        scorers: rewards that score them, by the same place.
    """
    report = PromptReport()
    if {"prompts.train", "prompts.eval"} <= lists.keys():
        _held_out(report, settings, lists["prompts.eval"], lists["prompts.train"])
    for where, prompts in lists.items():
        count_cut(report, settings.too_long, where, prompts, _readers(scorers.get(where, ())))
        for scorer in scorers.get(where, ()):
            _unscored(report, settings, where, prompts, scorer)
    return report


def add_encoders(
    report: PromptReport,
    settings: PromptSettings,
    lists: Mapping[str, Sequence[Prompt]],
    encoders: Sequence[TextReader],
    negative: str | None = None,
) -> None:
    """Add to a report which prompts, and whether the negative one, the model's text encoders cut."""
    for where, prompts in read_by_encoders(settings, lists).items():
        count_cut(report, settings.too_long, where, prompts, encoders)
    if negative is not None:
        count_cut(report, settings.too_long, "model.negative_prompt", [Prompt(negative)], encoders)


def read_by_encoders(settings: PromptSettings, lists: Mapping[str, Sequence[Prompt]]) -> dict[str, Sequence[Prompt]]:
    """Return the lists that must be counted: sentences of toy worlds are shorter than what any model reads."""
    if settings.too_long == "cut":
        return {}
    sources = {"prompts.train": settings.train, "prompts.eval": settings.held_out}
    return {where: listed for where, listed in lists.items() if sources[where].partition(":")[0] not in TOYS}


def _held_out(
    report: PromptReport, settings: PromptSettings, evaluated: Sequence[Prompt], trained: Sequence[Prompt]
) -> None:
    shared = count_shared(evaluated, trained)
    words = f"{shared:,} of the {len(evaluated):,} prompts that are evaluated are trained on too"
    if shared == len(evaluated) and not settings.eval_on_train:
        report.problems.append(
            f"prompts.eval must hold prompts that prompts.train does not, or nothing is held out. {words}, but for "
            "case, blanks and punctuation at the end. Name others (@train and @tune divide a list), or set "
            "prompts.eval_on_train=true."
        )
    elif shared:
        report.notes.append(f"{words}, and say nothing of other prompts.")


def _texts(prompts: Iterable[Prompt]) -> list[str]:
    return list(dict.fromkeys(text for prompt in prompts for text in prompt.captions or (prompt.text,)))


def _readers(scorers: Sequence[WeightedScorer]) -> list[TextReader]:
    """Return the rewards that say how far they read; stand-ins, which have no tokenizer, do not."""
    made = []
    for one in scorers:
        reading = None if isinstance(one.scorer, type) or not one.scorer.spec.uses_prompt else reading_of(one.scorer)
        if reading is not None:
            made.append(TextReader(f"the reward {one.name} ({reading[0]} tokens)", *reading))
    return made


def count_cut(
    report: PromptReport, too_long: str, where: str, prompts: Sequence[Prompt], readers: Sequence[TextReader]
) -> None:
    """Add to a report which prompts some readers cut; `too_long` is as in the configuration."""
    texts = _texts(prompts) if readers and too_long != "cut" else []
    for reader in readers:
        long = [text for text in texts if reader.cuts(text)]
        if not long:
            continue
        words = (
            f"{len(long):,} of the {len(texts):,} texts of {where} are longer than {reader.name} reads; the rest "
            f"is cut off. The first begins: {quote(cut(long[0], 80))}."
        )
        if too_long == "refuse":
            report.problems.append(f"{words} Shorten them, or set prompts.too_long=warn.")
        else:
            report.notes.append(words)


def _unscored(
    report: PromptReport, settings: PromptSettings, where: str, prompts: Sequence[Prompt], scorer: WeightedScorer
) -> None:
    asks = asks_of(scorer.scorer)
    if asks is None:
        return
    refused: list[tuple[str, str]] = []
    looked_for: dict[str, None] = {}
    for prompt in prompts:
        try:
            words = asks(prompt.text, prompt.beside)
        except RewardError as error:
            refused.append((prompt.text, str(error)))
            continue
        if words is not None and len(looked_for) < SHOWN:
            looked_for[cut(words, 60)] = None
    if looked_for:
        report.notes.append(f"The reward {scorer.name} looks for {', '.join(looked_for)} in images of {where}.")
    if not refused:
        return
    first = "; ".join(quote(text, 80) for text, _ in refused[:SHOWN])
    words = (
        f"The reward {scorer.name} cannot score {len(refused):,} of the {len(prompts):,} prompts of {where}, whatever "
        f"the image: {first}. {refused[0][1]}"
    )
    if len(refused) == len(prompts):
        report.problems.append(words)
    elif len(refused) > MOST_UNSCORED * len(prompts) and settings.unscored == "refuse":
        report.problems.append(f"{words} Remove them, or set prompts.unscored=warn: their samples do not train.")
    else:
        report.notes.append(words)
