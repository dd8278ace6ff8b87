"""Figures: how each reward is spread, and how the rewards go together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reward_models.common.errors import RewardError
from reward_models.scoring.summary import Series

GREEN, OCHRE, INK = "#1b7f5c", "#b7791f", "#2d3748"
COLUMNS = 3
"""Histograms side by side."""


def check_plot(target: Path) -> None:
    """Refuse a target that is neither a folder nor an image file, before anything is scored."""
    if target.suffix and target.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise RewardError(f"--plot takes a folder, or a file that ends in .png, .svg or .pdf. Got {target}.")


def draw(series: Sequence[Series], target: Path) -> list[Path]:
    """Draw histograms and, of two rewards or more, correlations.

    Args:
        series: scores of the same samples.
        target: an image file for all in one, or a folder for `histogram-<label>.png` and `correlation.png`.

    Returns:
        The files written.
    """
    if target.suffix:
        return [_draw_all(series, target)]
    target.mkdir(parents=True, exist_ok=True)
    written = []
    for one in series:
        figure = _figure(5.2, 3.6)
        _histogram(figure.subplots(), one)
        written.append(_save(figure, target / f"histogram-{re.sub(r'[^A-Za-z0-9._-]+', '_', one.label)}.png"))
    if len(series) > 1:
        figure = _figure(2 * _matrix_side(series), _matrix_side(series))
        _correlations(figure, series)
        written.append(_save(figure, target / "correlation.png"))
    return written


def correlations(series: Sequence[Series], ranks: bool) -> NDArray[np.float64]:
    """Return (K, K) Pearson, or with `ranks` Spearman, correlations over the samples that both rewards scored.

    NaN with fewer than three such samples or where one reward is constant.
    """
    from scipy.stats import rankdata

    count = len(series)
    matrix = np.full((count, count), np.nan)
    for i in range(count):
        for j in range(count):
            a, b = series[i].array, series[j].array
            both = np.isfinite(a) & np.isfinite(b)
            a, b = a[both], b[both]
            if len(a) >= 3 and np.ptp(a) > 0 and np.ptp(b) > 0:
                matrix[i, j] = np.corrcoef(*((rankdata(a), rankdata(b)) if ranks else (a, b)))[0, 1]
    return matrix


def _draw_all(series: Sequence[Series], target: Path) -> Path:
    columns = min(COLUMNS, len(series))
    rows = -(-len(series) // columns)
    several = len(series) > 1
    side = _matrix_side(series)
    width = max(5.2 * columns, 2 * side if several else 0)
    figure = _figure(width, 3.3 * rows + (side if several else 0))
    upper, lower = figure.subfigures(2, 1, height_ratios=[3.3 * rows, side]) if several else (figure, None)
    grid = upper.subplots(rows, columns, squeeze=False).ravel()
    for axes, one in zip(grid, series, strict=False):
        _histogram(axes, one)
    for axes in grid[len(series) :]:
        axes.set_axis_off()
    if lower is not None:
        _correlations(lower, series)
    return _save(figure, target)


def _figure(width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=140, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def _save(figure: Any, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path)
    return path


def _histogram(axes: Any, series: Series) -> None:
    good = series.array[np.isfinite(series.array)]
    failed = f", {series.failed} failed" if series.failed else ""
    axes.set_title(f"{series.label}   n = {len(good)}{failed}", fontsize=10, color=INK)
    if len(good):
        spread = np.ptp(good) > 0
        bins = min(40, max(8, round(2 * len(good) ** 0.5))) if spread else [good[0] - 0.5, good[0] + 0.5]
        axes.hist(good, bins=bins, color=GREEN, alpha=0.75, edgecolor="white", linewidth=0.6)
        axes.axvline(good.mean(), color=INK, linewidth=1.2, label=f"mean {good.mean():.4g}")
        axes.axvline(np.median(good), color=INK, linewidth=1.2, linestyle=":", label=f"median {np.median(good):.4g}")
        axes.legend(frameon=False, fontsize=8)
    axes.set_xlabel("raw score" if series.version is not None else "weighted sum", fontsize=9)
    axes.set_ylabel("files", fontsize=9)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.tick_params(labelsize=8, colors=INK)
    axes.grid(axis="y", alpha=0.25)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def _matrix_side(series: Sequence[Series]) -> float:
    return 2.6 + 0.55 * len(series)


def _correlations(figure: Any, series: Sequence[Series]) -> None:
    from matplotlib.colors import LinearSegmentedColormap

    labels = [one.label for one in series]
    pair = figure.subplots(1, 2)
    colours = LinearSegmentedColormap.from_list("calm", [OCHRE, "#f7f7f5", GREEN])
    for axes, (title, ranks) in zip(pair, (("Pearson", False), ("Spearman", True)), strict=True):
        matrix = correlations(series, ranks)
        axes.imshow(matrix, cmap=colours, vmin=-1, vmax=1)
        axes.set_title(title, fontsize=10, color=INK)
        axes.set_xticks(range(len(labels)), labels, rotation=35, ha="right", rotation_mode="anchor", fontsize=8)
        axes.set_yticks(range(len(labels)), labels, fontsize=8)
        axes.tick_params(length=0, colors=INK)
        axes.spines[:].set_visible(False)
        for (i, j), value in np.ndenumerate(matrix):
            text = "–" if np.isnan(value) else f"{round(value, 2) + 0:.2f}"  # + 0: no -0.00
            axes.text(j, i, text, ha="center", va="center", fontsize=8, color="white" if abs(value) > 0.7 else INK)
