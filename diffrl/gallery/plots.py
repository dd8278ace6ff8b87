"""Panels drawn by matplotlib as SVG whose text stays text: for the report, which has no scripts."""

from __future__ import annotations

import io
import math
import re
import threading
import warnings
from collections.abc import Sequence
from typing import Any

from diffrl.gallery.curves import AXES, Line, is_drawn, lines_of, plain, thin
from diffrl.gallery.panels import Panel
from diffrl.gallery.series import Track

PALETTE = ("#1b7f6b", "#d1762a", "#3f6fb5", "#a8457f", "#7f8a1f", "#5b5fc7", "#b3483b", "#6b7380")
"""Told apart with any kind of colour vision, together with the dashes; the page's style sheet has them too."""
DASHES = ("solid", (0, (6, 2.5)), (0, (1.5, 2)), (0, (8, 2.5, 1.5, 2.5)))
INK, FAINT, PAPER = "#23262b", "#d9d7d2", "#ffffff"
OTHERS = "#b3261e"
"""Of the line where a run went on with other inputs, here as in curve.png."""


def mark_other_inputs(axes: Any, at: float, size: float) -> None:
    """Draw the line where a run went on with other inputs; its words stand on the side that has room."""
    axes.axvline(at, color=OTHERS, linewidth=0.9, linestyle="--")
    low, high = axes.get_xlim()
    side = "right" if at - low > 0.7 * (high - low) else "left"
    axes.annotate("other inputs", (at, 1), xycoords=("data", "axes fraction"), fontsize=size, va="top", ha=side)


WIDTH, HEIGHT = 4.1, 2.9
"""Inches of a panel without its legend, hardly more than a column of the report: letters keep their size on a phone."""
LEFT, RIGHT, TOP, BOTTOM = 0.98, 0.12, 0.36, 0.58
"""The room around the axes. matplotlib would measure it (`layout="constrained"`), by making every label three times,
which is most of a drawing's time."""
TEXT, ROW = 12.5, 0.24
"""Points of the letters, and inches of a line's row in the legend below."""
FINE = 800
"""Points of a line, two a point of the typographer's: more do not show in a panel of this width."""
MANY = 60
"""Points of a line above which single points are not marked."""

_LOCK = threading.Lock()  # matplotlib's settings belong to the whole process


def panel_svg(panel: Panel, track: Track) -> str:
    """Return a panel of a run against its iterations, as an SVG document."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "diffrl",
        "text.parse_math": False,
        "font.size": TEXT,
    }
    lines = lines_of(panel, [track])
    under = ROW * len(lines) if len(lines) > 1 else 0.0
    high = HEIGHT + under
    with _LOCK, rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a font without a character of some name is the viewer's affair
        figure = Figure(figsize=(WIDTH, high), facecolor=PAPER)
        canvas = FigureCanvasSVG(figure)
        wide, tall = WIDTH - LEFT - RIGHT, HEIGHT - BOTTOM - TOP
        draw(figure.add_axes((LEFT / WIDTH, (BOTTOM + under) / high, wide / WIDTH, tall / high)), panel, lines, track)
        out = io.StringIO()
        # The same bytes as savefig, which draws everything twice.
        canvas.print_svg(out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return out.getvalue()


def draw(axes: Any, panel: Panel, lines: Sequence[Line], track: Track) -> None:
    """Plot a panel on matplotlib axes: titled, labelled, with a legend where there is more than one line."""
    column, words = AXES["iteration"]
    places = track.along(column)
    handles = []
    for line in lines:
        colour = PALETTE[line.colour % len(PALETTE)]
        placed = [(places[row], value, row) for row, value in thin(line.points, FINE) if is_drawn(places[row])]
        xs = [at_x for at_x, _, _ in placed]
        ys = [value * panel.scale if is_drawn(value) else math.nan for _, value, _ in placed]
        style = {"color": colour, "linestyle": DASHES[line.dash % len(DASHES)], "linewidth": 1.5}
        point = "." if len(xs) <= MANY else None
        marker = "o" if panel.evaluated else point
        handles += axes.plot(xs, ys, marker=marker, markersize=4 if panel.evaluated else 3, **style)
        if panel.band:
            band = track.along(panel.band)
            spread = [half * panel.scale if is_drawn(half := band[row]) else 0.0 for _, _, row in placed]
            low, high = ([y + sign * s for y, s in zip(ys, spread, strict=True)] for sign in (-1, 1))
            axes.fill_between(xs, low, high, color=colour, alpha=0.15, linewidth=0)
    for at in (places[row] for row in track.changed_rows):
        if is_drawn(at):
            mark_other_inputs(axes, at, TEXT - 2)
    axes.set_title(plain(panel.title), fontsize=TEXT + 1, loc="left", color=INK, y=1.0)
    axes.set_xlabel(words, color=INK)
    axes.set_ylabel(plain(panel.unit or panel.title), color=INK)
    box = axes.get_position()
    wide, high = axes.figure.get_size_inches() * (box.width, box.height)
    axes.xaxis.set_label_coords(0.5, (0.22 - BOTTOM) / high)
    axes.yaxis.set_label_coords((0.23 - LEFT) / wide, 0.5)
    axes.ticklabel_format(axis="y", scilimits=(-3, 5))  # labels that fit beside the axes
    axes.yaxis.set_offset_position("right")  # the title is on the left
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.tick_params(colors=INK)
    axes.grid(color=FAINT, linewidth=0.7)
    axes.set_axisbelow(True)
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
    if len(lines) > 1:
        labels = [f" {line.label}" for line in lines]  # matplotlib leaves out labels that begin with an underscore
        style = {"fontsize": TEXT, "frameon": False, "labelcolor": INK, "loc": "upper left", "borderpad": 0}
        axes.legend(handles, labels, bbox_to_anchor=(-LEFT / wide, -BOTTOM / high), **style)


def inline(svg: str, prefix: str) -> str:
    """Return an SVG as an element of a page: colours follow the page's theme, ids are its own, nothing external."""
    element = re.sub(r"<style.*?</style>", "", svg[svg.index("<svg") :], count=1, flags=re.DOTALL)
    element = re.sub(r'\sxmlns(:xlink)?="[^"]*"', "", element, count=2).replace("xlink:href=", "href=")
    element = re.sub(r'(\bid="|url\(#|\bhref="#)', rf"\g<1>{prefix}-", element)
    for size in ("width", "height"):
        element = re.sub(rf'(<svg[^>]*?)\s{size}="[^"]*"', r"\1", element, count=1)
    colours = {INK: "var(--ink)", FAINT: "var(--line)", PAPER: "none"}
    colours |= {colour: f"var(--series-{i})" for i, colour in enumerate(PALETTE)}
    styles = re.compile(r'style="[^"]*"')
    return styles.sub(lambda match: _themed(match[0], colours), element)


def _themed(style: str, colours: dict[str, str]) -> str:
    for colour, variable in colours.items():
        style = style.replace(colour, variable)
    return style
