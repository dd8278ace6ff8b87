"""Where a run's time and network evaluations went, from its summary or, before there is one, from its metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from diffrl.gallery.numbers import finite
from diffrl.gallery.series import Track
from diffrl.tracking.metrics import OUTSIDE


@dataclass(frozen=True)
class Costs:
    """What a run has cost."""

    phases: Sequence[tuple[str, float, float]]  # name, seconds and share of the iterations' time; the longest first
    outside: Sequence[tuple[str, float]]  # name and seconds of what lies outside of iterations
    purposes: Sequence[tuple[str, float]]  # name and number of network evaluations
    precisions: Sequence[tuple[str, float]]  # the same by the precision of the network
    lines: Sequence[tuple[str, str]]  # name and words of everything else that was counted
    whole: bool  # whether the run's summary says so; else it is what the rows of metrics add up to so far
    # the rows leave evaluations out, so that precisions and lines that add up are of training iterations
    partly: bool = False

    @property
    def any(self) -> bool:
        """Whether anything was counted."""
        return bool(self.phases or self.purposes or self.precisions or self.lines)


def costs_of(summary: Mapping[str, Any], track: Track) -> Costs:
    """Return the costs of a run."""
    whole = isinstance(summary.get("seconds"), dict) and isinstance(summary.get("counts"), dict)
    counts = _numbers(summary["counts"]) if whole else _added(track)
    seconds = _numbers(summary["seconds"]) if whole else _below(counts, "seconds/")
    purposes, precisions = _below(counts, "evaluations/"), _below(counts, "precision/")
    apart = 0.0 if whole else _evaluated(track, sum(count for name, count in purposes.items() if name not in OUTSIDE))
    purposes |= {"evaluation": purposes.get("evaluation", 0.0) + apart} if apart else {}
    inside = {name: value for name, value in seconds.items() if name not in OUTSIDE}
    total = sum(inside.values())
    phases = [(name, value, value / total if total else 0.0) for name, value in _largest(inside)]
    outside = [(name, seconds[name]) for name in OUTSIDE if name in seconds]
    words = f"{total:,.0f} s, and {sum(seconds.values()) - total:,.0f} s outside of iterations"
    lines = [("time", words)] if seconds else []
    lines += _summarised(summary, counts) if whole else _so_far(track, "in training iterations" if apart else "so far")
    return Costs(phases, outside, _largest(purposes), _largest(precisions), lines, whole, apart > 0)


def _evaluated(track: Track, counted: float) -> float:
    """Network evaluations of held-out evaluations: the total has them, the purposes of single iterations do not."""
    total = track.last("network_evaluations")
    return max(0.0, total - counted) if total is not None and counted else 0.0


def _summarised(summary: Mapping[str, Any], counts: Mapping[str, float]) -> list[tuple[str, str]]:
    lines = []
    made = _numbers(summary.get("network_evaluations"))
    if {"planned", "counted", "skipped"} <= made.keys():
        most = "" if summary["network_evaluations"].get("exact", True) else "at most "
        words = f"{made['counted']:,.0f} counted, {made['skipped']:,.0f} skipped (no advantage)"
        words = f"{words}, {most}{made['planned']:,.0f} planned; held-out evaluations included"
        lines.append(("network evaluations", words))
    cost = _numbers(summary.get("cost"))
    if {"planned", "evaluations"} <= cost.keys():
        words = f"{cost['evaluations']:,.0f} of {cost['planned']:,.0f} planned; those with gradient count three or "
        lines.append(("cost of training", words + "four times, held-out evaluations not"))
    for name in ("decodes", "reward_calls"):
        if name in counts:
            lines.append((name.replace("_", " "), f"{counts[name]:,.0f}"))
    if (updates := finite(summary.get("updates"))) is not None:
        lines.append(("updates", f"{updates:,.0f}"))
    return lines + _memory(finite(summary.get("peak_memory_bytes")))


def _so_far(track: Track, added: str) -> list[tuple[str, str]]:
    lines = []
    for column, name in (("network_evaluations", "network evaluations"), ("cost/evaluations", "cost of training")):
        if (last := track.last(column)) is not None:
            lines.append((name, f"{last:,.0f} so far"))
    for column in ("decodes", "reward_calls"):
        if column in track.columns:
            lines.append((column.replace("_", " "), f"{sum(track.columns[column].numbers()):,.0f} {added}"))
    return lines + _memory(track.last("peak_memory_bytes"))


def _memory(size: float | None) -> list[tuple[str, str]]:
    return [] if size is None else [("peak memory", f"{size / 2**30:.2f} GiB")]


def _numbers(data: object) -> dict[str, float]:
    """Return the numbers of a mapping that somebody may have written by hand."""
    if not isinstance(data, dict):
        return {}
    return {str(name): number for name, value in data.items() if (number := finite(value)) is not None}


def _below(counts: Mapping[str, float], prefix: str) -> dict[str, float]:
    return {name.removeprefix(prefix): value for name, value in counts.items() if name.startswith(prefix)}


def _added(track: Track) -> dict[str, float]:
    names = [name for name in track.columns if name.startswith(("seconds/", "evaluations/", "precision/"))]
    return {name: sum(values) for name in names if (values := track.columns[name].numbers())}


def _largest(values: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(values.items(), key=lambda item: -item[1])
