"""Scores in what a language model wrote. No number is ever guessed: what cannot be read raises, and says why."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence

NUMBER = r"[-+]?\d+(?:\.\d+)?(?!\d|[.,]\d|e[-+]?\d)"
"""A plain number, whole: neither the start of 4,5 or 1e1 nor of a longer one."""
RANGE = r"[-+]?\d+(?:\.\d+)?\s*(?:-|–|—|to\b)\s*\d"
"""1-5 and 1 to 5 are no scores."""
BLANKS = r"[^\S\n]*"
SHARE = rf"[ \t*_`]*(?:(%)|\(?(?:points?\b)?{BLANKS}(?:/|(?:out )?of\b)[ \t*_`]*(\d+(?:\.\d+)?))"
"""What may follow a number to say of how many it is: /10, out of 10, %."""
LEAST_MASS = 0.5
"""Of the first token's probability that must lie on the two words, or the answer was neither."""


class AnswerError(ValueError):
    """The answer holds no score; the text says why."""


def labelled_number(text: str, label: str, highest: float | None = None) -> float:
    """Return the last number given for a label: `Label: 4`, `**Label:** 4`, `Label (1-5): 4.25`, `Label: **4**/5`.

    Blanks, asterisks, underscores, backticks and one remark in round brackets may stand between; the remark is not a
    score, and neither is a range such as 1-5. The last, because a model may repeat the example it was given before it
    answers.

    Args:
        text: the answer.
        label: before the number; case does not matter.
        highest: the highest score. 4/10, 4 out of 10 and 40% are on another scale unless it is 10 or 100; None reads
            them as 4 and 40.

    Raises:
        AnswerError: there is none, the last is no plain number (4,5 or 1e1), or it is on another scale.
    """
    marks = r"[\s*_`]*"
    before = rf"(?<![^\W_]){re.escape(label)}{marks}(?:\([^()]*\){marks})?[:=]{marks}(?!{RANGE})(?=[-+]?\d)"
    places = [match.end() for match in re.finditer(before, text, re.IGNORECASE)]
    if not places:
        raise AnswerError(f"the answer holds no number after {label!r}: {shortened(text)}")
    number = re.compile(NUMBER, re.IGNORECASE).match(text, places[-1])
    if number is None:
        raise AnswerError(f"what stands after {label!r} is no plain number: {shortened(text[places[-1] :])}")
    share = re.compile(SHARE, re.IGNORECASE).match(text, number.end())
    if highest is not None and share is not None:
        whole = 100.0 if share[1] else float(share[2])
        if whole != highest:
            raise AnswerError(f"the answer is {number[0]} out of {whole:g}, and the highest score is {highest:g}")
    return float(number[0])


def matched_number(text: str, pattern: re.Pattern[str]) -> float:
    """Return the group of the last match of a pattern with one group, which must be a number.

    Raises:
        AnswerError: no match, or the group is no number.
    """
    matches = pattern.findall(text)
    if not matches:
        raise AnswerError(f"the answer does not match {pattern.pattern!r}: {shortened(text)}")
    return _finite(matches[-1], text)


def json_number(text: str, key: str) -> float:
    """Return the number under a key of the last JSON object in the text that has the key; other text is passed over.

    Raises:
        AnswerError: there is no such object, or the value is no number.
    """
    decoder, start, values = json.JSONDecoder(), 0, []
    while (start := text.find("{", start)) >= 0:
        try:
            value, start = decoder.raw_decode(text, start)
        except (ValueError, RecursionError):
            start += 1
            continue
        if key in value:
            values.append(value[key])
    if not values:
        raise AnswerError(f"the answer holds no JSON object with {key!r}: {shortened(text)}")
    return _finite(values[-1], text)


def yes_probability(options: Sequence[tuple[str, float]], words: tuple[str, str] = ("Yes", "No")) -> float:
    """Return P(first word) / (P(first word) + P(second word)) of the first token of an answer.

    Probabilities are summed over spellings: with a blank before, in any case, with a full stop or comma after.

    Args:
        options: the likeliest first tokens and their log probabilities, as the server lists them.
        words: the answer that counts, and the other one.

    Raises:
        AnswerError: less than half of the probability is on the two words.
    """
    mass = dict.fromkeys((word.lower() for word in words), 0.0)
    for token, logprob in options:
        word = token.strip(" \t\n\r\u0120\u2581\u010a.,!").lower()  # also the blanks of byte-level and sentencepiece
        if word in mass:
            mass[word] += math.exp(logprob)
    yes, no = mass.values()
    if not yes + no >= LEAST_MASS:
        likeliest = ", ".join(f"{token!r} {math.exp(logprob):.2f}" for token, logprob in list(options)[:3]) or "nothing"
        raise AnswerError(f"the first token is neither {words[0]!r} nor {words[1]!r}, but {likeliest}")
    return yes / (yes + no)


def within(value: float, limits: tuple[float, float]) -> float:
    """Return the value, if it is in the range that was asked for.

    Raises:
        AnswerError: it is not.
    """
    if not limits[0] <= value <= limits[1]:
        raise AnswerError(f"the answer is {value:g}, outside [{limits[0]:g}, {limits[1]:g}]")
    return value


def shortened(text: str, length: int = 160) -> str:
    """Return the text in quotes, on one line, its middle left out if it is long."""
    line = " ".join(text.split())
    return repr(line if len(line) <= length else f"{line[: length // 2]} ... {line[-length // 2 :]}")


def _finite(value: object, text: str) -> float:
    """Return a number, or a string that is nothing but a number: "4/10", "4,5" and "1e1" are none."""
    plain = isinstance(value, str) and re.fullmatch(r"\s*[-+]?\d+(?:\.\d+)?\s*", value)
    known = plain or (isinstance(value, (int, float)) and not isinstance(value, bool))
    number = float(value) if known else math.nan  # type: ignore[arg-type]
    if not math.isfinite(number):
        raise AnswerError(f"the score is {value!r}, which is no number: {shortened(text)}")
    return number


def parts_of(text: str, labels: Mapping[str, str], limits: tuple[float, float]) -> dict[str, float]:
    """Return the number of each part by its label, all of which must be there and in range.

    Args:
        text: the answer.
        labels: of each part's name.
        limits: inclusive.

    Raises:
        AnswerError: one is missing or outside.
    """
    return {name: within(labelled_number(text, label, limits[1]), limits) for name, label in labels.items()}
