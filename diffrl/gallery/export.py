"""The gallery as a static site: the same pages and images in a folder that opens from disk on any machine."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from jinja2.utils import htmlsafe_json_dumps
from markupsafe import escape

from diffrl.errors import ConfigError
from diffrl.gallery.answers import answered, as_bytes
from diffrl.gallery.columns import OFFERED, exported_states
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.numbers import counted
from diffrl.gallery.pages.votes import filter_votes
from diffrl.gallery.progress import setting
from diffrl.gallery.query import Query
from diffrl.gallery.records import Source
from diffrl.gallery.runs import RunSource
from diffrl.gallery.site import Site
from diffrl.gallery.static_links import Names, StaticLinks
from diffrl.gallery.thumbnails import MISSING, shrink
from diffrl.gallery.votes import read_votes
from diffrl.trees.read import list_trees

STATIC = Path(__file__).parent / "static"
ONLINE = ("live.js",)
"""Scripts that only work with a server."""
MOST_PAGES = 5000
MOST_TREES = MOST_PAGES // 2
"""Pages that all runs' trees have together; of more trees the newest are shown."""
MOST_EVALUATIONS = 600
"""Evaluations of all runs together that the slider goes through; of more, evenly many of each run are left out."""


def export_site(
    sources: Sequence[Source],
    destination: Path,
    options: Mapping[str, Any],
    far: Callable[[int, int], None] = lambda done, left: None,
) -> list[str]:
    """Write every page that can be reached from the start, and the images on them.

    The site is written beside its destination and moved there at the end: what was interrupted leaves nothing behind.
    It names runs, not where they lie on this machine.

    Args:
        sources: runs and folders; they are only read.
        destination: a directory that is new or empty.
        options: see `Site`.
        far: called before each page with how many are written, and how many more are known by then.

    Returns:
        What was written and how to open it, in lines for the user.

    Raises:
        ConfigError: the destination holds something or lies in a run, or there are more than `MOST_PAGES` pages.
    """
    destination = Path(destination)
    _require_free(destination, sources)
    destination.parent.mkdir(parents=True, exist_ok=True)
    draft = destination.parent / f".{destination.name or 'site'}-{os.getpid()}.part"
    draft.mkdir()
    try:
        shelf = Shelf(sources, draft)
        trees = max(1, MOST_TREES // max(1, len(sources)))
        evaluations = min(OFFERED, max(2, MOST_EVALUATIONS // max(1, len(sources))))
        most = {"trees": trees, "evaluations": evaluations}
        site = Site(sources, StaticLinks(shelf.keep), {**options, **most})
        pages, failed = _write_pages(site, draft, far)
        shutil.copytree(STATIC, draft / "static", ignore=shutil.ignore_patterns(*ONLINE))
        size = sum(file.stat().st_size for file in draft.rglob("*") if file.is_file())
        if destination.exists():
            destination.rmdir()
        draft.rename(destination)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    lines = [f"{counted(pages, 'page')}, {counted(shelf.written, 'image')}, {size / 1e6:.1f} MB in {destination}"]
    if shelf.missing:
        lines.append(f"{counted(shelf.missing, 'image')} could not be read: a sign stands in their place.")
    lines += [
        f"Of {run.title} the newest {len(site.trees(run)):,} of {kept:,} trees are shown."
        for run in site.runs
        if (kept := len(list_trees(run.path))) > trees
    ]
    lines += _absences(site)
    explained = [file for file in failed if file.endswith(".html")]
    absent = [file for file in failed if not file.endswith(".html")]
    lines += [f"{counted(len(explained), 'page')} could only say why: {_some(explained)}."] if explained else []
    lines += [f"{counted(len(absent), 'file')} could not be made: {_some(absent)}."] if absent else []
    lines.append(f"Open {destination / 'index.html'} in a browser, here or anywhere: it needs no server.")
    return lines


def _absences(site: Site) -> list[str]:
    """Return sentences on what the running gallery shows and this site does not."""
    lines = []
    stages: set[str] = set()
    for run in site.runs:
        try:
            shown, of = exported_states(site, run)
            stages |= {state.stage for state in run.states()} - {state.stage for state in shown}
        except GalleryError:
            continue  # its own pages say why it cannot be read
        if len(shown) < of:
            which = "the first, the last, some between"
            lines.append(f"Of {run.title} {len(shown)} of {of:,} evaluations are shown: {which}.")
    if "train" in stages:
        lines.append("Samples of training are not in it: Compare in the running gallery has them.")
    with contextlib.suppress(GalleryError):  # the page of the votes says so
        read = read_votes(Path(site.options["votes"]))
        votes = read.votes
        if read.unreadable:
            one = read.unreadable == 1
            words = "could not be read as a vote, and is" if one else "could not be read as votes, and are"
            lines.append(f"{counted(read.unreadable, 'line')} of the votes {words} left out.")
        if strangers := len(votes) - len(filter_votes(site, Query(), votes)):
            lines.append(f"Left out: {counted(strangers, 'vote')} on what is not in this site.")
    return lines


def _require_free(destination: Path, sources: Sequence[Source]) -> None:
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise ConfigError(
            f"An export never overwrites anything. {destination} already exists and is not empty. Choose "
            "another folder."
        )
    for source, path in _directories(sources):
        if destination.resolve().is_relative_to(path):
            raise ConfigError(
                f"An export is never written into what it shows. {destination} is in {source.title}. Choose a folder "
                "outside."
            )


def _write_pages(site: Site, draft: Path, far: Callable[[int, int], None]) -> tuple[int, list[str]]:
    """Render pages until no link leads to another; their number, and the files that only say what is wrong, or cannot.

    A sentence is a page: where a drawing or a table was wanted it is not put in its place.
    """
    links, hidden = site.links, Hidden(site.sources)
    assert isinstance(links, StaticLinks)
    links.page("home")
    count, failed = 0, []
    while links.pending:
        far(count, len(links.pending))
        file, name, query = links.pending.popleft()
        if count == MOST_PAGES:
            raise ConfigError(
                f"An exported site has at most {MOST_PAGES:,} pages. These {counted(len(site.sources), 'source')} "
                "give more. Export fewer at a time."
            )
        answer = answered(site, name, query)
        if answer.status >= 400 and not file.endswith(".html"):
            failed.append(file)
            continue
        if isinstance(answer.body, str):
            (draft / file).write_bytes(hidden.places(as_bytes(answer).decode("utf-8")).encode("utf-8"))
        else:
            (draft / file).write_bytes(answer.body)
        count += 1
        failed += [file] if answer.status >= 400 else []
    return count, failed


class Shelf:
    """Puts images into the site, each once."""

    def __init__(self, sources: Sequence[Source], site: Path):
        self.site, self.written, self.missing = site, 0, 0
        self._sources = {source.key: source for source in sources}
        self._names = Names()

    def keep(self, source: str, file: str, size: int | None, still: bool) -> str:
        """Write an image (small enough, it is its own thumbnail) and return its address; see `static_links.Keep`."""
        try:
            path = Path(self._sources[source].media(file))
            small = shrink(path, size, still) if size is not None or still else None
            name, suffix = str(PurePosixPath(file).with_suffix("")), PurePosixPath(file).suffix.lower()
            if small is None:
                return self._put(f"{source}/{name}", suffix, (source, file), path.read_bytes())
            name += ("/still" if still else "") + (f"-{size}" if size else "")
            return self._put(f"{source}/{name}", ".webp", (source, file, size, still), small)
        except (GalleryError, OSError, KeyError):
            self.missing += 1
            return self._write("missing.svg", MISSING.encode())

    def _put(self, words: str, suffix: str, meant: object, data: bytes) -> str:
        name, new = self._names.of(words, suffix, meant)
        self.written += new
        return self._write(name, data) if new else f"media/{name}"

    def _write(self, name: str, data: bytes) -> str:
        (self.site / "media").mkdir(exist_ok=True)
        (self.site / "media" / name).write_bytes(data)
        return f"media/{name}"


class Hidden:
    """Takes the places of this machine out of pages: a source's directory becomes its key, the home directory a tilde.

    Pages name runs by their titles; a path comes in by messages and by configurations that hold absolute paths.
    """

    def __init__(self, sources: Sequence[Source]):
        names: dict[str, str] = {}
        for _, path in _directories(sources):
            names |= {str(path.parent): "…"} if len(path.parent.parts) > 2 else {}
        for source in sources:
            written = setting(source, "dir") if isinstance(source, RunSource) else None
            if isinstance(written, str) and written.startswith("/") and len(Path(written).parts) > 1:
                names.setdefault(str(Path(written)), "…")
        names |= {str(path): source.key for source, path in _directories(sources)}
        if len(Path.home().parts) > 1:
            names.setdefault(str(Path.home()), "~")
        self._names = {form: name for path, name in names.items() for form in _forms(path)}
        longest = sorted(self._names, key=len, reverse=True)
        self._any = re.compile(rf"(?<![\w.~/-])(?:{'|'.join(map(re.escape, longest))})(?![\w-])") if longest else None

    def places(self, text: str) -> str:
        """Return the text without them."""
        return self._any.sub(lambda match: self._names[match[0]], text) if self._any else text


def _forms(path: str) -> set[str]:
    """Return a path as it may stand in a page: as it is, in HTML, in JSON within HTML."""
    return {path, str(escape(path)), str(htmlsafe_json_dumps(path))[1:-1]}


def _directories(sources: Sequence[Source]) -> list[tuple[Source, Path]]:
    """Return sources with their directories, both as they were named and with links followed."""
    ways = [(source, (source.path.absolute(), source.path.resolve())) for source in sources]
    return [(source, path) for source, paths in ways for path in dict.fromkeys(paths)]


def _some(files: Sequence[str]) -> str:
    return ", ".join(files[:3]) + (f" and {len(files) - 3} more" if len(files) > 3 else "")
