"""The trees that a run kept: their list, and one of them with the story of why the policy changed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from diffrl.errors import DiffrlError
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.numbers import counted
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer
from diffrl.gallery.runs import RunSource
from diffrl.gallery.site import Site
from diffrl.gallery.thumbnails import moves
from diffrl.gallery.trees.facts import tables
from diffrl.gallery.trees.figure import panel, split_images, tree_figure
from diffrl.gallery.trees.glossary import glossary
from diffrl.gallery.trees.numbers import three
from diffrl.gallery.trees.rule import which_prompt
from diffrl.gallery.trees.sections import Section
from diffrl.gallery.trees.story import opening, story
from diffrl.gallery.trees.view import total, tree_view
from diffrl.trees.read import NAME, list_trees, read_tree
from diffrl.trees.record import TREES, TreeRecord, tree_name

PER_PAGE = 24


def trees(site: Site, query: Query) -> Answer:
    """Return every tree that a run kept, the newest first."""
    run = site.run(query.text("run"))
    kept = site.trees(run)[::-1]
    pages = 1 if site.links.exported else max(1, -(-len(kept) // PER_PAGE))
    page = query.whole("page", 1, 1, pages)
    shown = kept if site.links.exported else kept[(page - 1) * PER_PAGE : page * PER_PAGE]
    of = len(list_trees(run.path)) if site.links.exported else len(kept)
    cards = [_card(run, iteration, group) for iteration, group in shown]
    return Answer(site.render("trees.html", run=run, cards=cards, count=len(kept), page=page, pages=pages, of=of))


def _card(run: RunSource, iteration: int, group: int) -> dict[str, Any]:
    """Return a tree in few words; of one that cannot be read, why."""
    name = tree_name(iteration, group)
    card: dict[str, Any] = {"name": name, "iteration": iteration, "group": group, "error": None}
    try:
        view = tree_view(read_tree(run.path, iteration, group))
    except DiffrlError as error:
        return card | {"error": str(error)}
    ranked = view.scored
    judged = [passed for node in view.sampled_leaves if (passed := view.passed(node)) is not None]
    ends = [] if not ranked else [("best", ranked[0]), ("worst", ranked[-1])]
    return card | {
        "prompt": view.record.prompt,
        "source": run.source_of(view.record.metadata),
        "place": which_prompt(view.record),
        "counts": _counts(len(view.sampled_leaves), len(view.edges)),
        "passed": f"{sum(judged)} of {len(judged)} passed" if judged else None,
        "spread": f"{three(total(ranked[-1]))} to {three(total(ranked[0]))}" if ranked else "no rewards",
        "dots": _dots([total(node) for node in ranked]),
        "turning": sum(edge.turning for edge in view.edges),
        "ends": [
            {
                "which": which,
                "reward": three(total(node)),
                "file": f"{TREES}/{name}/{node.picture}" if node.picture else None,
            }
            for which, node in ends
        ],
    }


def _counts(images: int, steps: int) -> str:
    return f"{counted(images, 'image')}, {counted(steps, 'step')}" if steps else counted(images, "image")


def _dots(rewards: Sequence[float]) -> list[str]:
    """Return where rewards lie, in percent of 0 to 1, or of their own range where they leave that."""
    if not rewards:
        return []
    low, high = min(0.0, *rewards), max(1.0, *rewards)
    return [f"{100 * (reward - low) / (high - low):.1f}" for reward in rewards]


def tree(site: Site, query: Query) -> Answer:
    """Return one prompt's rollout as a tree, and why the policy changed."""
    run = site.run(query.text("run"))
    kept = site.trees(run)
    if not kept:
        raise GalleryError(f"{run.title} kept no trees. Set track.trees in its configuration and train again.", 404)
    name = query.text("tree", tree_name(*kept[-1]))
    match = NAME.fullmatch(name)
    if match is None:
        raise GalleryError(f'tree must be an iteration and a group, like "000020-3". Got {name!r}.', 404)
    wanted = (int(match[1]), int(match[2]))
    if wanted not in kept or tree_name(*wanted) != name:
        raise GalleryError(f"{run.title} kept no tree {name}. Choose another of its trees.", 404)
    try:
        record = read_tree(run.path, *wanted)
        return Answer(_page(site, run, record, kept))
    except DiffrlError as error:
        raise GalleryError(str(error), 503) from error


def _page(site: Site, run: RunSource, record: TreeRecord, kept: Sequence[tuple[int, int]]) -> str:
    def address(**options: Any) -> Callable[[str], str]:
        return lambda file: site.links.media(run.key, f"{TREES}/{record.name}/{file}", **options)

    def first_frame(file: str) -> str | None:
        return address(size=512, still=True)(file) if moves(run, f"{TREES}/{record.name}/{file}") else None

    view, small = tree_view(record), address(size=128, still=True)
    figure = tree_figure(view, small)
    return site.render(
        "tree.html",
        run=run,
        record=record,
        source=run.source_of(record.metadata),
        figure=figure,
        shots=lambda section: _shots(record, figure, section),
        image=lambda file, size: address(size=size, still=True)(file),
        opening=opening(view),
        story=story(view),
        strip=lambda id: split_images(record.nodes[id]),
        words=glossary(view),
        names=view.names,
        place=which_prompt(record),
        tables=tables(view),
        panel=panel(view, small, address(), first_frame),
        around={
            key: site.links.page("tree", run=run.key, tree=tree_name(*other)) if other else None
            for key, other in neighbours(kept, (record.iteration, record.group)).items()
        },
    )


def _shots(record: TreeRecord, figure: dict[str, Any], section: Section) -> list[tuple[dict[str, Any], str]]:
    """Return the nodes of the figure whose images stand for a section, with their files; none unless all were kept."""
    nodes = {node["id"]: node for node in figure["nodes"]}
    shots = [(nodes[id], file) for id in section.shown if (file := record.nodes[id].picture)]
    return shots if len(shots) == len(section.shown) else []


def neighbours(kept: Sequence[tuple[int, int]], here: tuple[int, int]) -> dict[str, tuple[int, int] | None]:
    """Return the trees before and after one, and those of the iterations around it, of its group where there is one.

    Returns:
        previous, next, earlier and later; None where there is none.
    """
    index = kept.index(here)
    earlier = max((iteration for iteration, _ in kept if iteration < here[0]), default=None)
    later = min((iteration for iteration, _ in kept if iteration > here[0]), default=None)

    def of(iteration: int | None) -> tuple[int, int] | None:
        groups = [group for other, group in kept if other == iteration]
        if iteration is None:
            return None
        return iteration, here[1] if here[1] in groups else groups[0]

    return {
        "previous": kept[index - 1] if index else None,
        "next": kept[index + 1] if index + 1 < len(kept) else None,
        "earlier": of(earlier),
        "later": of(later),
    }
