"""Panels drawn by matplotlib as SVG whose text stays text: to download, for pages without scripts, for the report."""

from __future__ import annotations

import io
import math
import re
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

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


class Look(NamedTuple):
    """Measures of a panel, in inches and points; 72 points an inch are also the units of its SVG.

    Margins are given: matplotlib would measure them (`layout="constrained"`), by making every label three times, which
    is most of a drawing's time.

    Args:
        width: of a panel.
        height: of a panel, without a legend below.
        left: of the axes; `right`, `top` and `bottom` likewise: the room around them.
        text: size of the letters; `legend`: of those in a legend.
        below: whether the legend stands below the axes, a line of the drawing each, or beside them.
    """

    width: float
    height: float
    left: float
    right: float
    top: float
    bottom: float
    text: float
    legend: float
    below: bool


PRINTED = Look(5.6, 3.0, 0.85, 0.15, 0.32, 0.5, 9, 7.5, False)
"""To download: for a paper, or to be looked at as a whole."""
IN_PAGE = Look(4.1, 2.9, 0.98, 0.12, 0.36, 0.58, 12.5, 12.5, True)
"""Within a page, whose columns are hardly narrower than it: letters keep their size, on a phone too."""
TITLE = 0.35
"""Inches above all panels where they have a title."""
HANDLE, LETTER, ROW = 0.5, 0.065, 0.24
"""Inches that the line in a legend takes, and a letter beside it; and a row of a legend below."""
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
    look: Look = PRINTED,
) -> str:
    """Return panels as one SVG document.

    Args:
        panels: at least one.
        tracks: the runs.
        x: key of `AXES`.
        columns: panels beside each other.
        title: above all.
        colours: of the runs, see `lines_of`.
        look: measures of a panel.
    """
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    settings: dict[Any, Any] = {
        "svg.fonttype": "none",
        "svg.hashsalt": "diffrl",
        "text.parse_math": False,
        "font.size": look.text,
    }
    with _LOCK, rc_context(settings), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a font without a character of some name is the viewer's affair
        columns = min(columns, len(panels))
        rows = -(-len(panels) // columns)
        lines_by_panel = [lines_of(panel, tracks, colours) for panel in panels]
        under = max(below(lines, look) for lines in lines_by_panel)
        tall = look.height + under
        wide, high = look.width * columns, tall * rows + (TITLE if title else 0)
        figure = Figure(figsize=(wide, high), facecolor=PAPER)
        canvas = FigureCanvasSVG(figure)
        for n, (panel, lines) in enumerate(zip(panels, lines_by_panel, strict=True)):
            left = n % columns * look.width + look.left
            bottom = (rows - 1 - n // columns) * tall + look.bottom + under
            width = look.width - look.left - look.right - beside(lines, look)
            height = look.height - look.bottom - look.top
            axes = figure.add_axes((left / wide, bottom / high, width / wide, height / high))
            draw(axes, panel, lines, tracks, x, look)
        if title:
            figure.text(0.5, 1 - TITLE / 2 / high, plain(title), fontsize=11, color=INK, ha="center", va="center")
        out = io.StringIO()
        # The same bytes as savefig, which draws everything twice.
        canvas.print_svg(out, metadata={"Date": None, "Creator": None, "Format": None, "Type": None})
    return out.getvalue()


def beside(lines: Sequence[Line], look: Look) -> float:
    """Return inches that the legend takes beside the axes, at most half of a panel."""
    longest = max((len(line.label) for line in lines), default=0)
    return min(HANDLE + LETTER * longest, look.width / 2) if len(lines) > 1 and not look.below else 0.0


def below(lines: Sequence[Line], look: Look) -> float:
    """Return inches that the legend takes below the axes."""
    return ROW * len(lines) if len(lines) > 1 and look.below else 0.0


def draw(axes: Any, panel: Panel, lines: Sequence[Line], tracks: Sequence[Track], x: str, look: Look) -> None:
    """Plot a panel on matplotlib axes: titled, labelled, with a legend where there is more than one line."""
    column, words = AXES[x]
    handles = []
    for line in lines:
        track, colour = tracks[line.track], PALETTE[line.colour % len(PALETTE)]
        places = track.along(column)
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
    for track in {line.track: tracks[line.track] for line in lines}.values():
        for at in (track.along(column)[row] for row in track.changed_rows):
            if is_drawn(at):
                mark_other_inputs(axes, at, look.text - 2)
    axes.set_title(plain(panel.title), fontsize=look.text + 1, loc="left", color=INK, y=1.0)
    axes.set_xlabel(words, color=INK)
    axes.set_ylabel(plain(panel.unit or panel.title), color=INK)
    box = axes.get_position()
    wide, high = axes.figure.get_size_inches() * (box.width, box.height)
    axes.xaxis.set_label_coords(0.5, (0.22 - look.bottom) / high)
    axes.yaxis.set_label_coords((0.23 - look.left) / wide, 0.5)
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
        style = {"fontsize": look.legend, "frameon": False, "labelcolor": INK, "loc": "upper left"}
        corner = (-look.left / wide, -look.bottom / high) if look.below else (1.0, 1.02)
        axes.legend(handles, labels, bbox_to_anchor=corner, **style, **({"borderpad": 0} if look.below else {}))


def inline(svg: str, prefix: str) -> str:
    """Return an SVG as an element of a page: colours follow the page's theme, ids are its own, nothing external.

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
    return styles.sub(lambda match: _themed(match[0], colours), element)


def _themed(style: str, colours: dict[str, str]) -> str:
    for colour, variable in colours.items():
        style = style.replace(colour, variable)
    return style
