"""Whether what is measured again agrees with the numbers that are kept."""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path

from scipy import stats

from diffrl.cost.prices import parse_prices
from diffrl.studies.compare import collect
from diffrl.studies.compare.archive import unpack
from diffrl.studies.compare.results import Comparison


def strayed(comparison: Comparison, kept: Path) -> list[str]:
    """Return the arms whose mean lies outside of what their kept numbers predict for as many seeds."""
    directory = Path(f"{kept.stem}-kept")
    shutil.rmtree(directory, ignore_errors=True)
    unpack(kept, directory)
    before = collect(directory, comparison.metric, parse_prices(comparison.prices.name))
    shutil.rmtree(directory)
    messages = []
    for arm in comparison.arms:
        old = next((one for one in before.arms if one.label == arm.label), None)
        if old is None or len(old.runs) < 2 or not arm.runs:
            messages.append(f"{arm.label}: nothing to hold it to")
            continue
        low, high = band([before.score(old, run) for run in old.runs], len(arm.runs))
        mean = comparison.mean_score(arm).mean
        if not low <= mean <= high:
            messages.append(f"{arm.label}: {mean:.3f} lies outside {low:.3f} to {high:.3f}")
    return messages


def band(values: Sequence[float], seeds: int) -> tuple[float, float]:
    """Return the 95 % prediction interval of the mean of so many further seeds (Student's t)."""
    n, mean = len(values), sum(values) / len(values)
    sd = math.sqrt(sum((value - mean) ** 2 for value in values) / (n - 1))
    half = stats.t.ppf(0.975, n - 1) * sd * math.sqrt(1 / n + 1 / seeds)
    return mean - half, mean + half
