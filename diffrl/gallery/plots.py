"""Panels drawn by matplotlib as SVG whose text stays text: to download, for pages without scripts, for the report."""

from __future__ import annotations

import io
import math
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from diffrl.gallery.curves import AXES, Line, is_drawn, lines_of, plain, thin
from diffrl.gallery.panels import Panel
from diffrl.gallery.series import Track

PALETTE = ("#1b7f6b", "#d1762a", "#3f6fb5", "#a8457f", "#7f8a1f", "#5b5fc7", "#b3483b", "#6b7380")
"""Told apart with any kind of colour vision, together with the dashes; the page's style sheet has them too."""
DASHES = ("solid", (0, (6, 2.5)), (0, (1.5, 2)), (0, (8, 2.5, 1.5, 2.5)))
INK, FAINT, PAPER = "#23262b", "#d9d7d2", "#ffffff"
WIDTH, HEIGHT = 5.6, 3.0
LEFT, RIGHT, TOP, BOTTOM, TITLE = 0.85, 0.15, 0.32, 0.5, 0.35
"""Inches around the axes of a panel, and above all panels where they have a title.

matplotlib would measure these (`layout="constrained"`), by making every label three times: most of a drawing's time.
"""
HANDLE, LETTER = 0.5, 0.065
"""Inches that the line in a legend takes, and a letter beside it."""
FINE = 800
"""Points of a line, two a point of the typographer's: more do not show in a panel of this width."""
MANY = 60
"""Points of a line above which single points are not marked."""

_LOCK = threading.Lock()  # matplotlib's settings belong to the whole process


def panels_svg(
    panels: Sequence[Panel],
    tracks: Sequence[Track],
    x: str,
    columns: int = 2,
    title: str = "",
    colours: Mapping[str, int] | None = None,
) -> str:
    """Panels as one SVG document.

    Args:
        panels: at least one.
        tracks: the runs.
        x: key of `AXES`.
        columns: panels beside each other.
        title: above all.
        colours: of the runs, see `lines_of`.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "diffrl",
        "text.parse_math": False,
        "font.size": 9,
    }
    with _LOCK, rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a font without a character of some name is the viewer's affair
        columns = min(columns, len(panels))
        rows = -(-len(panels) // columns)
        wide, high = WIDTH * columns, HEIGHT * rows + (TITLE if title else 0)
        figure = Figure(figsize=(wide, high), facecolor=PAPER)
        canvas = FigureCanvasSVG(figure)
        for n, panel in enumerate(panels):
            lines = lines_of(panel, tracks, colours)
            left, bottom = n % columns * WIDTH + LEFT, (rows - 1 - n // columns) * HEIGHT + BOTTOM
            width, height = WIDTH - LEFT - RIGHT - beside(lines), HEIGHT - BOTTOM - TOP
            axes = figure.add_axes((left / wide, bottom / high, width / wide, height / high))
            draw(axes, panel, lines, tracks, x)
        if title:
            figure.text(0.5, 1 - TITLE / 2 / high, plain(title), fontsize=11, color=INK, ha="center", va="center")
        out = io.StringIO()
        # The same bytes as savefig, which draws everything twice.
        canvas.print_svg(out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return out.getvalue()


def beside(lines: Sequence[Line]) -> float:
    """Inches that the legend takes beside the axes, at most half of a panel."""
    longest = max((len(line.label) for line in lines), default=0)
    return min(HANDLE + LETTER * longest, WIDTH / 2) if len(lines) > 1 else 0.0


def draw(axes: Any, panel: Panel, lines: Sequence[Line], tracks: Sequence[Track], x: str) -> None:
    """A panel on matplotlib axes: titled, labelled, with a legend where there is more than one line."""
    column, words = AXES[x]
    handles = []
    for line in lines:
        track, colour = tracks[line.track], PALETTE[line.colour % len(PALETTE)]
        places = track.along(column)
        placed = [(places[row], value, row) for row, value in thin(line.points, FINE) if is_drawn(places[row])]
        xs = [place for place, _, _ in placed]
        ys = [value * panel.scale if is_drawn(value) else math.nan for _, value, _ in placed]
        style = {"color": colour, "linestyle": DASHES[line.dash % len(DASHES)], "linewidth": 1.5}
        marker = "o" if panel.evaluated else "." if len(xs) <= MANY else None
        handles += axes.plot(xs, ys, marker=marker, markersize=4 if panel.evaluated else 3, **style)
        if panel.band:
            band = track.along(panel.band)
            spread = [half * panel.scale if is_drawn(half := band[row]) else 0.0 for _, _, row in placed]
            low, high = ([y + sign * s for y, s in zip(ys, spread, strict=True)] for sign in (-1, 1))
            axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
    axes.set_title(plain(panel.title), fontsize=10, loc="left", color=INK, y=1.0)
    axes.set_xlabel(words, color=INK)
    axes.set_ylabel(plain(panel.unit or panel.title), color=INK)
    box = axes.get_position()
    wide, high = axes.figure.get_size_inches() * (box.width, box.height)
    axes.xaxis.set_label_coords(0.5, -0.28 / high)
    axes.yaxis.set_label_coords(-0.62 / wide, 0.5)
    axes.ticklabel_format(axis="y", scilimits=(-3, 5))  # labels that fit beside the axes
    axes.yaxis.set_offset_position("right")  # the title is on the left
    if x != "seconds":
        axes.xaxis.get_major_locator().set_params(integer=True)
    axes.tick_params(colors=INK)
    axes.grid(color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
    if len(lines) > 1:
        labels = [f" {line.label}" for line in lines]  # matplotlib leaves out labels that begin with an underscore
        axes.legend(
            handles, labels, fontsize=7.5, frameon=False, labelcolor=INK, loc="upper left", bbox_to_anchor=(1.0, 1.02)
        )


def inline(svg: str, prefix: str) -> str:
    """An SVG document as an element of a page: colours follow the page's theme, ids are its own, nothing external.

    Args:
        svg: from `panels_svg`.
        prefix: that makes its ids different from those of the page's other figures.
    """
    element = re.sub(r"<style.*?</style>", "", svg[svg.index("<svg") :], count=1, flags=re.DOTALL)
    element = re.sub(r'\sxmlns(:xlink)?="[^"]*"', "", element, count=2).replace("xlink:href=", "href=")
    element = re.sub(r'(\bid="|url\(#|\bhref="#)', rf"\g<1>{prefix}-", element)
    for size in ("width", "height"):
        element = re.sub(rf'(<svg[^>]*?)\s{size}="[^"]*"', r"\1", element, count=1)
    colours = {INK: "var(--ink)", FAINT: "var(--line)", PAPER: "none"}
    colours |= {colour: f"var(--series-{i})" for i, colour in enumerate(PALETTE)}
    styles = re.compile(r'style="[^"]*"')
    return styles.sub(lambda found: _themed(found[0], colours), element)


def _themed(style: str, colours: dict[str, str]) -> str:
    for colour, variable in colours.items():
        style = style.replace(colour, variable)
    return style
