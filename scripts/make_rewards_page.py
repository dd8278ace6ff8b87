"""Write the tables of docs/rewards.md from the scorers' classes; a test keeps them current.

python scripts/make_rewards_page.py
"""

from __future__ import annotations

import math
from pathlib import Path
from urllib.parse import unquote

from reward_models.base import ScorerSpec
from reward_models.registry import SCORERS, factory_of

PAGE = Path(__file__).resolve().parent.parent / "docs" / "rewards.md"
NEEDS = {"prompt": "prompt", "source": "the image that was edited", "group": "its group"}
BEGIN, END = "<!-- scorers: begin -->", "<!-- scorers: end -->"


def specs() -> dict[str, ScorerSpec]:
    """Return the spec of every registered scorer."""
    return {name: factory_of(name).spec for name in sorted(SCORERS)}


def tables() -> str:
    """Return two Markdown tables: what each scorer says, and what it takes to have it."""
    says = [
        "| reward | what it measures | media | raw score | usual `shift`, `scale` | needs |",
        "|---|---|---|---|---|---|",
    ]
    takes = [
        "| reward | weights | memory | extra | licence of code; of weights | source |",
        "|---|---|---|---|---|---|",
    ]
    for name, spec in specs().items():
        direction = "" if spec.higher_is_better else ", lower is better"
        needs = [NEEDS.get(need, f"`{need}`") for need in spec.needs]
        usual = "" if spec.scaling == (0.0, 1.0) else f"{spec.scaling[0]:g}, {spec.scaling[1]:g}"
        cells = (
            f"`{name}`",
            _plain(spec.description),
            " and ".join(spec.media),
            _range(spec) + direction,
            usual,
            ", ".join(needs),
        )
        says.append(f"| {' | '.join(cells)} |")
        licence = spec.code_license + (f"; {spec.weights_license}" if spec.weights_license else "")
        extra = f"`{spec.extra}`" if spec.extra else ""
        cells = (f"`{name}`", _link(spec.weights), spec.memory or "", extra, licence, _link(spec.citation))
        takes.append(f"| {' | '.join(cells)} |")
    return "\n".join([*says, "", *takes])


def page(text: str) -> str:
    """Return the page with its tables made anew."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{tables()}\n{END}{after}"


def _range(spec: ScorerSpec) -> str:
    low, high = spec.range
    if math.isinf(low) and math.isinf(high):
        return "unbounded"
    if math.isinf(high):
        return f"from {low:g}"
    if math.isinf(low):
        return f"up to {high:g}"
    return f"{low:g} to {high:g}"


def _plain(text: str) -> str:
    return text.replace("|", "\\|").rstrip(".")


def _link(citation: str | None) -> str:
    """Return a bare address as a short link; anything else as it is."""
    if citation is None:
        return ""
    if citation.startswith("https://") and " " not in citation:
        host, *_, last = citation.removeprefix("https://").split("/")
        return f"[{unquote(last) if host == 'github.com' else host}]({citation})"
    return _plain(citation)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(PAGE)
