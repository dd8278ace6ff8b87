"""Which states stand side by side: those of an address, those of one that names none, and those that can be chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import PurePath

from diffrl.gallery.compare import FOLDER
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.progress import first_rewards, setting
from diffrl.gallery.query import Query
from diffrl.gallery.records import Source, State, falls, state_key
from diffrl.gallery.runs import RunSource
from diffrl.gallery.site import Site

FEWEST, MOST = 1, 6
OFFERED = 60
"""States of one stage that a list offers; of more, evenly many are left out."""
WORDS = {"eval": "evaluation", "train": "training", "generate": "generated", "folder": "images"}
ORDER = ("eval", "generate", "train")
"""Stages by what a comparison is most likely about."""


@dataclass(frozen=True)
class Column:
    """A state as a column."""

    source: Source
    state: State
    label: str  # its name on the page

    @property
    def key(self) -> str:
        """As it stands in an address."""
        return state_key(self.source, self.state)

    @property
    def stream(self) -> str:
        """What the noise of its samples was drawn for; see `stream`."""
        return stream(self.source, self.state)

    @property
    def folder(self) -> bool:
        """Whether its samples are images of a folder."""
        return self.source.kind == "folder"


@dataclass(frozen=True)
class Choice:
    """The columns of a page."""

    # one to six that an address names; of sources that nobody chose among all (`compare.fitting` cuts)
    columns: Sequence[Column]
    notes: Sequence[str] = field(default_factory=list)  # sentences on what could not be shown
    chosen: bool = False  # whether the address named them


def label(state: State) -> str:
    """Return a state in words: "evaluation 80"."""
    words = WORDS.get(state.stage, state.stage)
    return words if state.stage == "folder" else f"{words} {state.iteration}"


def stream(source: Source, state: State) -> str:
    """Return what the noise of a state's samples was generated for: equal keys and streams are the same noise.

    Evaluations draw the same noise at every iteration, training draws its own (`rollout.address`); of other stages
    nothing is known, so that each of their iterations counts as a stream of its own. Latents of another model or
    size are other noise, whatever the key.
    """
    if source.kind == "folder":
        return FOLDER
    drawn_for = state.stage if state.stage == "eval" else state.key
    return f"{drawn_for} {latents(source)}" if isinstance(source, RunSource) else drawn_for


def latents(run: RunSource) -> str:
    """Return what the shape of a run's latents depends on, and so their noise: the model's family and the images' size.

    Where config.yaml leaves height or width to the model, the model's name stands for them: the last part of its path,
    because a copy of it in another place has the same size.
    """
    family, height, width, frames, path = (
        setting(run, name, "model") for name in ("family", "height", "width", "frames", "path")
    )
    name = "" if height and width else PurePath(str(path)).name
    return f"{family} {height} {width} {frames} {name}"


def choose(site: Site, query: Query) -> Choice:
    """Return the columns that were asked for: by `columns`, by a `run` (first against last), else of sources the last.

    Several of `run` name the sources, none means all.

    Raises:
        GalleryError: an unknown column, or more than six.
    """
    keys = query.all("columns")
    if keys:
        if not FEWEST <= len(keys) <= MOST:
            raise GalleryError(
                f"A comparison has {FEWEST} to {MOST} columns. Got {len(keys)}. Change the address, or go back."
            )
        return Choice(named([site.state(key) for key in keys]), chosen=True)
    runs = dict.fromkeys(query.all("run"))
    if len(runs) == 1 or len(site.sources) == 1:
        return first_and_last(site.source(next(iter(runs), "")))
    chosen = [site.source(key) for key in runs] or site.sources
    return last_of_all([source for source in site.sources if source in chosen])


def named(pairs: Sequence[tuple[Source, State]]) -> list[Column]:
    """Return columns with labels that tell them apart; the source is named where there are several, or of a folder."""
    several = len({source.key for source, _ in pairs}) > 1

    def words(source: Source, state: State) -> str:
        if source.kind == "folder":
            return source.title
        return f"{source.title} · {label(state)}" if several else label(state)

    return [Column(source, state, words(source, state)) for source, state in pairs]


def first_and_last(source: Source) -> Choice:
    """Return the first and the last evaluation of a run, else of what else it has; one column if it has only one."""
    states = main_states(source.states())
    if not states:
        return Choice([], [f"{source.title} has no samples yet. They come with its first evaluation."])
    if len(states) == 1:
        note = f"{source.title} has only {label(states[0])} so far: there is nothing to compare it with yet."
        return Choice(named([(source, states[0])]), [note] if source.kind == "run" else [])
    return Choice(named([(source, states[0]), (source, states[-1])]))


def last_of_all(sources: Sequence[Source]) -> Choice:
    """Return the last evaluation of every source, in the order of the gallery; those that cannot be read are named."""
    pairs: list[tuple[Source, State]] = []
    notes: list[str] = []
    for source in sources:
        try:
            states = main_states(source.states())
        except GalleryError as error:
            notes.append(str(error))
            continue
        if states:
            pairs.append((source, states[-1]))
        else:
            notes.append(f"{source.title} has no samples yet.")
    return Choice(named(pairs), notes)


def main_states(states: Sequence[State]) -> list[State]:
    """Return the states of the stage that a comparison is most likely about, in the order of their iterations."""
    stages = {state.stage for state in states}
    stage = next((stage for stage in (*ORDER, *sorted(stages)) if stage in stages), "")
    return sorted((state for state in states if state.stage == stage), key=lambda state: state.iteration)


def options(source: Source, kept: Sequence[State] = ()) -> list[State]:
    """Return the states of a source for a list: evaluations first, of many iterations evenly chosen ones and `kept`."""
    states = source.states()
    stages = dict.fromkeys((*ORDER, *(state.stage for state in states)))
    return [one for stage in stages for one in thinned([s for s in states if s.stage == stage], kept)]


def thinned(states: Sequence[State], kept: Sequence[State] = (), most: int = OFFERED) -> list[State]:
    """Return about `most` of many states: the first, the last, evenly many between, and those of `kept`."""
    every = max(1, -(-len(states) // most))
    keys = {state.key for state in kept}
    return [s for i, s in enumerate(states) if i % every == 0 or i == len(states) - 1 or s.key in keys]


def exported_states(site: Site, source: Source) -> tuple[list[State], int]:
    """Return the evaluations of a source that an exported site has pages of, and of how many (option `evaluations`).

    Raises:
        GalleryError: its store cannot be read.
    """
    states = main_states(source.states())
    return thinned(states, most=site.options.get("evaluations", OFFERED)), len(states)


def reward_names(columns: Sequence[Column]) -> list[str]:
    """Return rewards that any column has: "total" first, then whole rewards, then parts."""
    names = list(dict.fromkeys(name for c in columns for name in c.source.reward_names(c.state)))
    return sorted(names, key=lambda name: (name != "total", "/" in name))


def lower_rewards(columns: Sequence[Column], names: Sequence[str]) -> frozenset[str]:
    """Return those of the names, parts too, of which less is better as far as any column knows."""
    known = frozenset().union(*(column.source.lower_is_better(column.state) for column in columns))
    return frozenset(name for name in names if falls(name, known))


def default_reward(columns: Sequence[Column], names: Sequence[str]) -> str | None:
    """Return the first held-out reward of the first run that has one, else "total", else the first."""
    for column in columns:
        if isinstance(column.source, RunSource):
            held_out = [name for name in first_rewards(column.source) if name in names]
            if held_out:
                return held_out[0]
    return "total" if "total" in names else next(iter(names), None)
