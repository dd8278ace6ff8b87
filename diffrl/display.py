"""How results are shown everywhere: Markdown tables, tables of the console, and figures that look alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = Mapping[str, str]
"""Column -> cell; all rows of a table have the same columns."""
NOTHING = "–"
GREY = "#7b8794"
COLORS = (
    "#0072B2",  # Okabe and Ito's palette, without its yellow, which is too pale for a line
    "#D55E00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#E69F00",
    "#000000",
)


def plus_minus(mean: float | None, half: float | None) -> str:
    """Write "0.812 ± 0.021": a mean and half of its interval, or its error; one without the other stands alone."""
    if mean is None:
        return NOTHING
    return f"{mean:.3f}" if half is None else f"{mean:.3f} ± {half:.3f}"


def markdown_table(rows: Sequence[Row], left: int = 1) -> str:
    """Write rows as Markdown has them.

    Args:
        rows: at least one.
        left: so many columns stand to the left, the others to the right.
    """
    columns = list(rows[0])
    lines = [columns, ["---"] * left + ["---:"] * (len(columns) - left)]
    lines += [[_escaped(row[column]) for column in columns] for row in rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _escaped(cell: str) -> str:
    return cell.replace("\\", "\\\\").replace("|", "\\|")


def console_table(title: str, rows: Sequence[Row], columns: Sequence[str] = (), **options: Any) -> Table:
    """Make a table for a console, the first column left and the others right.

    Args:
        title: above it.
        rows: at least one, unless columns are named.
        columns: those that are shown; all by default.
        **options: of `rich.table.Table`.
    """
    columns = columns or list(rows[0])
    table = Table(title=title, title_justify="left", **options)
    table.add_column(columns[0], overflow="fold", min_width=14)
    for column in columns[1:]:
        table.add_column(column, justify="right", overflow="fold")
    for row in rows:
        table.add_row(*(Text(row[column]) for column in columns))
    return table


def make_figure(width: float, height: float) -> Figure:
    """Make an empty figure of so many inches, which no window shows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def dress(axes: Any) -> None:
    """Give axes a faint grid and no frame above or to the right."""
    axes.grid(alpha=0.22)
    axes.spines[["top", "right"]].set_visible(False)
