"""Which metrics share an axis: what has one unit and is read together, in the order in which a run is judged."""

from __future__ import annotations

import fnmatch
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

HELD_OUT, TRAINING, SPREAD = "Held-out rewards", "Training rewards", "Spread"
FIDELITY, UPDATE, SENTINEL, COSTS, FURTHER = "Fidelity", "Update", "Sentinel", "Costs", "Further metrics"
ALWAYS = "mean; always the same prompts and noise"
"""Of a held-out reward."""
CROWDED = 6
"""Lines on one axis, of several runs, above which every metric gets an axis of its own."""


@dataclass(frozen=True)
class Panel:
    """One axis and what stands on it."""

    id: str  # in addresses; the column where there is only one
    section: str  # heading that it stands under
    title: str
    columns: tuple[str, ...]  # names in metrics.jsonl
    unit: str = ""  # on the axis; "" where the metric has none that is known
    note: str = ""  # a few words on the meaning
    fold: str = ""  # what it is folded away under, "" where it shows at once
    scale: float = 1.0  # what values are multiplied with for the axis; files keep the run's own units
    # column of what is drawn around the line, above and below it: a standard deviation, half an interval
    band: str | None = None

    @property
    def evaluated(self) -> bool:
        """Whether it has values at evaluations only, each worth a mark."""
        return all(is_evaluated(column) for column in self.columns)

    def name(self, column: str) -> str:
        """Return a column within the panel."""
        return column.partition("/")[2] or column


KNOWN: Mapping[str, Sequence[tuple[str, str, str, str, str]]] = {
    SPREAD: (
        ("spread", "Spread of the reward", "reward/std", "weighted reward", "standard deviation of a batch"),
        (
            "groups",
            "Groups without a signal",
            "groups/zero_spread groups/dropped",
            "groups",
            "all rewards equal; too few scored samples",
        ),
        ("turning", "Turning edges", "credit/turning_edges", "steps", "their reward was replaced by the long-term one"),
    ),
    FIDELITY: (
        (
            "fidelity",
            "Rank agreement",
            "tau rho audit_tau",
            "correlation",
            "proxy against true reward; 1 is the same order",
        ),
        (
            "matches",
            "Best and worst quarter",
            "top_match bottom_match",
            "share",
            "of the quarter by proxy that is in the true one",
        ),
    ),
    UPDATE: (
        ("ratio", "Ratio", "ratio", "new / old density", "mean over the edges; 1 is the policy that sampled"),
        ("ratio_error", "Error of the ratio", "ratio_error ratio_error_max", "|ratio − 1|", "mean and largest"),
        ("clipped", "Clip fraction", "clipped", "share of edges", "whose gradient the clip removed"),
        ("approx_kl", "Approximate KL", "approx_kl", "nats a dimension", "old policy to policy"),
        ("velocity_gap", "Velocity gap", "velocity_gap", "mean square", "policy against the old policy"),
        ("matching_error", "Matching error", "matching_error", "mean square", "of noised samples"),
        ("group_weight", "Weight of a group", "group_weight", "", "DGPO: 1/2 at the start"),
        ("pair_accuracy", "Pairs told apart", "pair_accuracy", "share", "DPO: before each update; 1/2 at the start"),
        ("pair_margin", "Margin of a pair", "pair_margin", "", "DPO's logit: winner above loser, against the start"),
        (
            "implicit_reward",
            "Implied reward",
            "implicit_reward reward_gap",
            "",
            "CRD: what the policy implies, and what it misses",
        ),
        (
            "direction",
            "Covariance below the splits",
            "direction",
            "root mean square",
            "of reward and clean latents: what tree tilt moves along",
        ),
        (
            "prediction_error",
            "Error at the splits",
            "prediction_error",
            "mean absolute",
            "the clean prediction against the mean of the samples below",
        ),
        (
            "art",
            "Way to the target",
            "moved target_gap",
            "root mean square",
            "DiffusionART: how far predictions have moved, and what is left",
        ),
        ("reference_kl", "Distance to the start", "reference_kl", "", "model before alignment"),
        ("grad_norm", "Gradient norm", "grad_norm", "", "before clipping"),
        ("learning_rate", "Learning rate", "learning_rate", "", ""),
        ("loss", "Loss", "loss", "", "what is minimised; its level says little"),
        (
            "contrast",
            "Errors of the two predictions",
            "loss_plus loss_minus",
            "weighted error",
            "DiffusionNFT contrasts them",
        ),
    ),
    SENTINEL: (
        ("diversity", "Diversity", "diversity", "RMS", "of a sample to the others of its prompt"),
        ("sharpness", "Sharpness", "sharpness", "variance of the Laplacian", "of training samples"),
        ("change", "Below the best so far", "change/*", "standard deviations", "held-out rewards"),
        ("alarms", "Alarms", "alarms", "things wrong", "at evaluations"),
    ),
    COSTS: (
        ("seconds", "Time by phase", "seconds/*", "seconds", "of each iteration"),
        ("evaluations", "Network evaluations by purpose", "evaluations/*", "samples", "of each iteration"),
        ("precision", "Network evaluations by precision", "precision/*", "samples", "of each iteration"),
        ("memory", "Peak memory", "peak_memory_bytes", "GiB", "the most so far"),
    ),
}
"""Of each section: id, title, columns, unit and note of its panels, in their order."""
PREFIXES = {FIDELITY: "fidelity/", UPDATE: "update/", SENTINEL: "sentinel/"}
"""What all columns of a section begin with, which `KNOWN` leaves out."""
SCALES = {"memory": 2.0**-30}
"""Of panels that do not show the run's own units."""
OWN_POLICY = ("ratio", "ratio_error", "clipped", "approx_kl", "velocity_gap")
BEFORE = "with one update an iteration, measured before it"
"""Panels that compare the policy with the one that drew, and why they may tell of no difference."""
INTERVALS = "held_out_interval/"
AXIS_COLUMNS = ("iteration", "cost/evaluations", "cost/seconds")


def is_evaluated(column: str) -> bool:
    """Return whether a metric is written at evaluations only; its absence between them is no gap."""
    return column.startswith(("held_out/", "pairs/", "sentinel/change/")) or column == "sentinel/alarms"


def panels_of(columns: Iterable[str], runs: int = 1) -> list[Panel]:
    """Return the panels with data; every column stands in exactly one, but for spreads and axes.

    Args:
        columns: that have numbers, in their order.
        runs: how many lines each column gives; where a panel would be crowded, each column gets its own.
    """
    every = list(columns)
    left = [column for column in every if column not in AXIS_COLUMNS and not column.startswith(INTERVALS)]
    panels = [_with_interval(panel, every) for panel in _rewards(left, "held_out/", HELD_OUT, ALWAYS)]
    if "pairs/accuracy" in left:
        what = ("pairs/accuracy",), "share", "given pairs whose winner the policy prefers more than the start; 1/2 then"
        panels.append(Panel("pairs", HELD_OUT, "Held-out pairs told apart", *what))
    if "reward/mean" in left:
        band = "reward/std" if "reward/std" in left else None
        what = ("reward/mean",), "weighted reward", "mean and standard deviation of the batch"
        panels.append(Panel("reward", TRAINING, "Training reward", *what, band=band))
    if "reward/selected_mean" in left:
        what = ("reward/selected_mean",), "weighted reward", "mean of the samples chosen of the pool, its extremes"
        panels.append(Panel("selected", TRAINING, "Reward of the chosen samples", *what))
    of_training = [column for column in left if column not in ("reward/mean", "reward/std", "reward/selected_mean")]
    panels += _rewards(of_training, "reward/", TRAINING, "mean of the batch, in the scorer's units")
    for section, known in KNOWN.items():
        for id, title, names, unit, note in known:
            wanted = [PREFIXES.get(section, "") + name for name in names.split()]
            if chosen := tuple(column for name in wanted for column in fnmatch.filter(left, name)):
                panels.append(Panel(id, section, title, chosen, unit, note, scale=SCALES.get(id, 1.0)))
    taken = {column for panel in panels for column in panel.columns}
    panels += [Panel(column, FURTHER, column, (column,), fold=FURTHER) for column in left if column not in taken]
    return [part for panel in panels for part in _uncrowded(panel, runs)]


def _rewards(columns: Sequence[str], prefix: str, section: str, note: str) -> list[Panel]:
    """Return a panel a reward, since each has units of its own; parts of a reward are folded away."""
    names = [column for column in columns if column.startswith(prefix)]
    parents = {name: next((other for other in names if name.startswith(f"{other}/")), "") for name in names}
    panels = []
    for name in names:
        title, parent = name.removeprefix(prefix), parents[name].removeprefix(prefix)
        fold = f"Parts of {parent}" if parent else ""
        title = title if parent else f"{section.removesuffix(' rewards')} {title}"
        panels.append(Panel(name, section, title, (name,), "score", "" if parent else note, fold))
    return sorted(panels, key=lambda panel: bool(panel.fold))


def _with_interval(panel: Panel, columns: Collection[str]) -> Panel:
    half = f"{INTERVALS}{panel.name(panel.id)}"
    return replace(panel, band=half, note=f"{panel.note}; 95 % interval over prompts") if half in columns else panel


def _uncrowded(panel: Panel, runs: int) -> list[Panel]:
    if runs == 1 or len(panel.columns) == 1 or len(panel.columns) * runs <= CROWDED:
        return [panel]
    title = f"{panel.title}: " if panel.section == COSTS else ""
    return [replace(panel, id=name, title=f"{title}{panel.name(name)}", columns=(name,)) for name in panel.columns]
