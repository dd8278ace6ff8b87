"""Numbers of a tree as its pages write them."""

from __future__ import annotations

import math

from diffrl.gallery import numbers
from diffrl.gallery.numbers import finite

NOTHING = 1e-6
"""Size up to which an advantage is the rounding error of one that is 0."""
WEAK = 0.05
"""Size below which an advantage asks for so little that a step which goes the other way does not go against it."""
PLACES = 6
"""Digits after the point that a float32 of the size of a reward has."""


def known(value: float | None) -> bool:
    """Return whether there is a finite number."""
    return finite(value) is not None


def number(value: object) -> float:
    """Return a number of the rule, 0 where the record has none."""
    return finite(value) or 0.0


def three(value: float | None) -> str:
    """Return three digits after the point; 0.0125 and its rounding errors look alike."""
    return numbers.three(_clean(value))


def signed(value: float | None) -> str:
    """Return the same with its sign: two numbers that differ only in it, or by a rounding error, look alike."""
    return numbers.signed(_clean(value))


def _clean(value: float | None) -> float | None:
    return round(value, PLACES) if value is not None and math.isfinite(value) else None


def level(sigma: float) -> str:
    """Return a noise level: two digits."""
    return f"{sigma:.2f}"


def share(value: float | None) -> str:
    """Return an advantage: its sign and two digits; a plain 0 where it pushes nowhere, a dash where there is none."""
    if value is None or not math.isfinite(value):
        return "–"
    size, sign = round(abs(value), PLACES), "+" if value > 0 else "−"
    digits = 2 if size >= 0.005 else 3
    return f"{sign}{size:.{digits}f}" if push(value) else "0"


def push(advantage: float | None) -> int:
    """Return 1 where an advantage pushes up, -1 down, 0 nowhere (None and rounding errors of equal rewards too)."""
    if advantage is None or not abs(advantage) > NOTHING:
        return 0
    return 1 if advantage > 0 else -1


def weak(advantage: float | None) -> bool:
    """Return whether an advantage asks for next to nothing."""
    return advantage is None or abs(advantage) < WEAK


def tiny(value: float | None) -> str:
    """Return a small number with its sign, two digits that mean something and no power of ten; a dash for None."""
    if value is None or not math.isfinite(value):
        return "–"
    size, sign = abs(value), "+" if value > 0 else "−"
    if size < 1e-7:
        return f"{sign}0" if size else "±0"
    digits = min(8, max(2, 1 - math.floor(math.log10(size))))
    return f"{sign}{size:.{digits}f}"


def factor(value: float) -> str:
    """Return a weight or a rate, in as few digits as it needs: "0.5", "0.00013", "3"."""
    size = abs(value)
    if size < 1e-7 or size >= 1e7:
        return f"{value:.2g}"
    digits = max(0, 2 - math.floor(math.log10(size)))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def compact(value: float) -> str:
    """Return a rate in two digits, small ones with a power of ten: "3.3e-5", "2e-4", "0.01"."""
    if value == 0 or abs(value) >= 1e-3:
        return factor(value)
    digits, power = f"{value:.1e}".split("e")
    return f"{digits.removesuffix('.0')}e{int(power)}"


def likelier(change: float) -> str:
    """Return a change of a log-likelihood as "1.6 times as likely", "3.2 % less likely", "e^12 times as likely"."""
    if abs(change) >= math.log(100):
        return f"e^{'+' if change > 0 else '−'}{abs(change):.0f} times as likely".replace("^+", "^")
    times = math.exp(change)
    percent = 100 * abs(times - 1)
    if percent >= 10:
        digits = sum(times < bound for bound in (1, 10))
        return f"{times:.{digits}f} times as likely"
    if percent < 0.01:
        return f"hardly {'more' if change > 0 else 'less'} likely"
    return f"{percent:.{1 if percent >= 1 else 2}f} % {'more' if change > 0 else 'less'} likely"
