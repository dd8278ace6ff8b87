"""Numbers: which count as one, and how people read them."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence

SAME = 1e-6
"""Changes up to this are rounding."""


def finite(value: object) -> float | None:
    """Return a finite number; None for all else: true and false, texts, infinities, whole numbers beyond all floats."""
    if type(value) is not float:
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            return None
        try:
            value = float(value)
        except OverflowError:
            return None
    return value if math.isfinite(value) else None


def three(value: float | None) -> str:
    """Return three digits after the point, fewer for large numbers; a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) < 100 else f"{value:.1f}"


def signed(value: float | None) -> str:
    """Return the same with its sign, a true minus among them; ± is rounding, else a digit is not 0."""
    if value is None or not math.isfinite(value):
        return "–"
    size = abs(value)
    if size <= SAME:
        return "±0.000"
    small = next((text for digits in (3, 4, 5, 6) if float(text := f"{size:.{digits}f}")), "") if size < 0.001 else ""
    return ("+" if value > 0 else "−") + (small or three(size))


def csv_text(lines: Iterable[Sequence[object]]) -> str:
    """Return lines as CSV: numbers as they stand, nothing for what is none or not finite."""
    out = io.StringIO()
    csv.writer(out, lineterminator="\r\n").writerows([_cell(value) for value in line] for line in lines)
    return out.getvalue()


def _cell(value: object) -> str:
    """Return a number as it stands; text that a spreadsheet would take for a formula gets an apostrophe."""
    if value is None:
        return ""
    if not isinstance(value, str):
        return repr(value) if finite(value) is not None else ""
    return f"'{value}" if value.startswith(("=", "+", "-", "@", "\t", "\r", "\n")) else value


def counted(count: int, one: str, many: str = "") -> str:
    """Return a count with its noun: "1 step", "3 steps"."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


def improvement(change: float, lower: bool = False) -> float:
    """Return a change, or its opposite where lower is better; whatever judges a change asks this."""
    return -change if lower else change


def sign(change: float | None, lower: bool = False) -> str:
    """Return the CSS class of a change: "gain", "loss", or none for what is rounding or unknown."""
    if change is None or not abs(change) > SAME:
        return ""
    return "gain" if improvement(change, lower) > 0 else "loss"
