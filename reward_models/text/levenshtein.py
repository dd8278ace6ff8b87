"""The edit distance of two texts."""

from __future__ import annotations


def levenshtein(first: str, second: str) -> int:
    """Return fewest insertions, deletions and substitutions of one character that turn one text into the other.

    Levenshtein 1966; the usual dynamic programme, one row at a time: O(len(first) len(second)) time.
    """
    if len(first) < len(second):
        first, second = second, first
    row = list(range(len(second) + 1))  # distances of the empty start of `first` to every start of `second`
    for i, letter in enumerate(first, start=1):
        diagonal, row[0] = row[0], i
        for j, other in enumerate(second, start=1):
            diagonal, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, diagonal + (letter != other))
    return row[-1]
