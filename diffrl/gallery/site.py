"""Pages by name: the one place that knows the sources, the templates and where links lead."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import jinja2
from markupsafe import Markup

from diffrl import __version__
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.kept import Kept
from diffrl.gallery.links import Links
from diffrl.gallery.numbers import sign, signed, three
from diffrl.gallery.paths import is_video
from diffrl.gallery.query import Query
from diffrl.gallery.records import Answer, Brief, Sample, Source, State, describe_reward
from diffrl.gallery.runs import RunSource
from diffrl.gallery.thumbnails import Thumbnails, moves
from diffrl.trees.read import list_trees

if TYPE_CHECKING:
    from diffrl.gallery.run_table import Difference, Entry

TABLES, REPORTS = 32 * 2**20, 8
"""Characters of the tables, and number of the reports, a few MB each, that stay in memory."""
RUNS = 1000
"""Rows of the table of runs that stay in memory."""

BLOCK = 32
"""Prompts whose evaluations are told in one answer: a browser asks for the samples that are looked at, not for all."""

Page = Callable[["Site", Query], Answer]

PAGES: Mapping[str, str] = {
    "home": "diffrl.gallery.pages.home:home",
    "run": "diffrl.gallery.pages.run:run",
    "compare": "diffrl.gallery.pages.compare:compare",
    "compare.html": "diffrl.gallery.pages.one_file:compare_file",
    "tree.html": "diffrl.gallery.pages.one_file:tree_file",
    "compare.csv": "diffrl.gallery.pages.compare:compare_csv",
    "runs.csv": "diffrl.gallery.pages.home:runs_csv",
    "evaluations.json": "diffrl.gallery.pages.evaluations:evaluations_json",
    "evaluations.js": "diffrl.gallery.pages.evaluations:evaluations_js",
    "trees": "diffrl.gallery.pages.trees:trees",
    "tree": "diffrl.gallery.pages.trees:tree",
    "curves": "diffrl.gallery.pages.curves:curves",
    "curves.csv": "diffrl.gallery.pages.curves:curves_csv",
    "report": "diffrl.gallery.pages.report:report",
    "votes": "diffrl.gallery.pages.votes:votes",
    "ranking.csv": "diffrl.gallery.pages.votes:ranking_csv",
    "preferences.jsonl": "diffrl.gallery.pages.votes:preferences_jsonl",
    "preferences.parquet": "diffrl.gallery.pages.votes:preferences_parquet",
    "state": "diffrl.gallery.pages.live:state",
}
"""Functions (site, query) -> Answer by the name in an address; the server has `vote` besides."""


class Site:
    """Everything a page function needs.

    Args:
        sources: runs and folders; or what gives them, each time that they are asked for.
        links: where things are found.
        options: of the command, for the pages that know them (votes: the file of the votes; ...).
    """

    def __init__(
        self,
        sources: Sequence[Source] | Callable[[], list[Source]],
        links: Links,
        options: Mapping[str, Any] | None = None,
    ):
        self._sources = sources if callable(sources) else partial(list, sources)
        self.links, self.options = links, dict(options or {})
        self.thumbnails = Thumbnails()
        self.tables: Kept[str] = Kept(TABLES, len)
        self.entries: Kept[Entry] = Kept(RUNS)
        self.differences: Kept[Difference] = Kept(8 * RUNS)
        self.briefs: Kept[list[Brief]] = Kept(8)  # of the baseline's last evaluations
        self.reports: Kept[str] = Kept(REPORTS)
        self._colours: dict[str, int] = {}
        self.templates = jinja2.Environment(
            loader=jinja2.PackageLoader("diffrl.gallery", "templates"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self.templates.tests["video"] = is_video
        self.templates.filters |= {"three": three, "signed": signed, "sign": sign, "describe_reward": describe_reward}
        self.templates.globals |= {"site": self, "links": links, "version": __version__}

    @property
    def sources(self) -> list[Source]:
        """Everything that is shown."""
        return self._sources()

    @property
    def runs(self) -> list[RunSource]:
        """The sources that are runs."""
        return [source for source in self.sources if isinstance(source, RunSource)]

    @property
    def colours(self) -> Mapping[str, int]:
        """Places of the sources in the palette by their keys, the same on every page: those that come later follow."""
        for key in sorted(source.key for source in self.sources):
            self._colours.setdefault(key, len(self._colours))
        return self._colours

    def source(self, key: str) -> Source:
        """Return a source by its key; the only one if the key is empty.

        Raises:
            GalleryError: there is none (404).
        """
        sources = self.sources
        for source in sources:
            if source.key == key or (not key and len(sources) == 1):
                return source
        known = ", ".join(source.key for source in sources)
        raise GalleryError(f"There is no run {key!r} in this gallery. It has: {known}.", 404)

    def run(self, key: str) -> RunSource:
        """Return a run by its key; the only one if the key is empty.

        Raises:
            GalleryError: there is none (404).
        """
        if not key and len(self.runs) == 1:
            return self.runs[0]
        source = self.source(key)
        if not isinstance(source, RunSource):
            raise GalleryError(f"{source.title} is a folder of images, which has no such page.", 404)
        return source

    def trees(self, run: RunSource) -> list[tuple[int, int]]:
        """Return iteration and group of a run's trees, ascending; an exported site has the newest (option `trees`)."""
        return list_trees(run.path)[-self.options.get("trees", 0) :]

    def state(self, key: str) -> tuple[Source, State]:
        """Return a state by its key, "demo@eval-80".

        Raises:
            GalleryError: there is none (404).
        """
        source_key, _, wanted = key.rpartition("@")
        source = self.source(source_key)
        for state in source.states():
            if state.key == wanted:
                return source, state
        raise GalleryError(f"{source.title} has no samples of {wanted!r}. Choose another of its evaluations.", 404)

    def render(self, template: str, **values: Any) -> str:
        """Return a template with the values that it names."""
        return self.templates.get_template(template).render(**values)

    def answer(self, name: str, query: Query) -> Answer:
        """Return a page by its name.

        Raises:
            GalleryError: there is none, or it cannot be shown.
        """
        if name not in PAGES:
            raise GalleryError(f"There is no page {name!r}. Go back to the start of the gallery.", 404)
        module, _, function = PAGES[name].partition(":")
        page: Page = getattr(importlib.import_module(module), function)
        return page(self, query)

    def message(self, error: GalleryError) -> Answer:
        """Return a page that says what is wrong."""
        body = self.render("message.html", message=str(error), status=error.status)
        return Answer(body, status=error.status)

    def image(
        self, source: Source, file: str | None, alt: str, size: int | None = 256, css: str = "", lazy: bool = True
    ) -> Markup:
        """Return an image or a video as HTML; what has no file says so. Images of 128 pixels and less are shown crisp.

        An image that moves stands still for who asked their system for less motion; static/motion.js plays it.

        Args:
            source: whose it is.
            file: relative to the source; None if it was not kept.
            alt: what a screen reader says.
            size: longest edge of the thumbnail; None is the whole image.
            css: further classes.
            lazy: loaded when it comes near the window.
        """
        macro = self.templates.get_template("image.html").module.image  # type: ignore[attr-defined]
        return Markup(macro(source, file, alt, size, css, lazy, moves(source, file)))

    def evaluations(self, source: Source, sample: Sample) -> str | None:
        """Return where static/evaluations.js finds a sample at every evaluation of its run (`pages.evaluations`).

        None for what was not drawn in an evaluation of a run: other stages draw noise of their own at every iteration,
        so there is nothing to follow. A page from disk cannot fetch, but it can run a script.
        """
        if not isinstance(source, RunSource) or sample.state.stage != "eval":
            return None
        block = sample.key[2] // BLOCK
        if self.links.exported:
            return self.links.page("evaluations.js", run=source.key, block=block)
        return self.links.page("evaluations.json", run=source.key, block=block, state=sample.state.key)
