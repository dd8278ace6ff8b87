"""What only a report has: images as data: URIs, curves as inline SVG, one tree with its story."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from diffrl.errors import DiffrlError
from diffrl.gallery.curves import brief, columns_of, lines_of
from diffrl.gallery.errors import GalleryError
from diffrl.gallery.links import Value
from diffrl.gallery.panels import HELD_OUT, OWN_POLICY, TRAINING, Panel, panels_of
from diffrl.gallery.records import Source
from diffrl.gallery.runs import RunSource
from diffrl.gallery.series import Track
from diffrl.gallery.thumbnails import MISSING, showing, shrink
from diffrl.trees.read import list_trees, read_tree
from diffrl.trees.record import TREES, TreeRecord

NODE = 128
"""Longest edge of a tree's images."""
CRISP = 128
"""Longest edge up to which an image is shown with sharp pixels, as gallery.js does."""
MOVING = 40_000
"""Bytes up to which what moves is shown moving; of more, the first frame."""
TREE_BYTES = 900_000
"""What the images of the tree may add up to; further nodes have none."""
LOOKED = 5
"""Iterations, from the last, in which a tree with a spread is looked for."""
DRAWN = ("groups", "turning", "fidelity", "matches", "ratio", "clipped", "approx_kl", "velocity_gap", "grad_norm")
ALWAYS = (HELD_OUT, TRAINING)


class InlineLinks:
    """Addresses on a page that is one file: small images are inside, and there is nothing else to lead to."""

    exported = True

    def __init__(self, source: Callable[[str], Source]):
        self._source = source

    def page(self, name: str, **parameters: Value) -> str:
        """Return "", since no other page comes along."""
        return ""

    def media(self, source: str, file: str, size: int | None = None, still: bool = False) -> str:
        """Return a data: URI of an image, or of a sign that it is missing; "" of the whole one, which stays outside."""
        if size is None:
            return ""
        try:
            return data_uri(Path(self._source(source).media(file)), size, still)
        except (GalleryError, OSError):
            return as_uri("image/svg+xml", MISSING.encode())

    def static(self, name: str) -> str:
        """Return "", since styles stand inside and scripts do not come along."""
        return ""


def data_uri(path: Path, size: int, still: bool = False) -> str:
    """Return an image as a data: URI, with the fragment "crisp" if it is so small that its pixels are to be seen.

    Args:
        path: of the image.
        size: longest edge in pixels of what is shown.
        still: the first frame of what moves; so is what moves and has more than `MOVING` bytes.

    Raises:
        GalleryError: it cannot be read.
    """
    from reward_models.common.image_files import frames_of

    with showing(path, f"The image {path.name}") as image:
        longest, moves = max(image.size), frames_of(image) > 1
        whole = not still and moves and longest <= size and path.stat().st_size <= MOVING
    small = None if whole else shrink(path, size, still=True)
    content = path.read_bytes() if small is None else small
    kind = "image/webp" if small is not None else mimetypes.guess_type(path.name)[0] or "image/webp"
    address = as_uri(kind, content)
    return f"{address}#crisp" if longest <= CRISP else address


def as_uri(kind: str, content: bytes) -> str:
    """Return a file's bytes as a data: URI of this media type."""
    return f"data:{kind};base64,{base64.b64encode(content).decode('ascii')}"


def figures(track: Track, once: bool = False) -> tuple[list[tuple[Panel, Markup]], str]:
    """Return the curves that tell most of a run, and sentences on those that stayed at one value, "" without any.

    A curve is an SVG element whose colours follow the page's theme.
    """
    from diffrl.gallery.plots import inline, panel_svg

    shown: list[tuple[Panel, Markup]] = []
    constant: list[tuple[Panel, float | None]] = []
    for n, panel in enumerate(panels_of(columns_of([track]))):
        if panel.fold or (panel.section not in ALWAYS and panel.id not in DRAWN):
            continue
        values = {value if value == value else None for line in lines_of(panel, [track]) for _, value in line.points}
        if len(values) == 1 and panel.section not in ALWAYS:
            constant.append((panel, values.pop()))
        else:  # matplotlib escapes the texts of an SVG
            shown.append((panel, Markup(inline(panel_svg(panel, track), f"f{n}"))))
    return shown, unmoved(constant, once)


def unmoved(constant: Sequence[tuple[Panel, float | None]], once: bool) -> str:
    """Return sentences on panels that have one value throughout, and on why that does not mean that nothing moved."""
    if not constant:
        return ""
    words = "; ".join(f"{panel.title} {brief(value)}" for panel, value in constant)
    of_policy = [panel.title for panel, _ in constant if panel.id in OWN_POLICY]
    which = "these" if len(of_policy) == len(constant) else ", ".join(of_policy)
    why = f" With one update an iteration, {which} are measured before it." if of_policy and once else ""
    return f"Not plotted, because they stayed at one value: {words}.{why}"


def tree_part(run: RunSource) -> dict[str, Any]:
    """Return a tree, its figure and its story; without one, a sentence."""
    try:
        record, torn = telling_tree(run.path)
        if record is None:
            return {
                "figure": None,
                "why": torn or "No tree was recorded. track.trees in the configuration records them.",
            }
        from diffrl.gallery.trees.figure import split_images, tree_figure
        from diffrl.gallery.trees.story import story
        from diffrl.gallery.trees.view import tree_view

        view, image_of = tree_view(record), _images(run.path / TREES / record.name)
        part: dict[str, Any] = {
            "figure": tree_figure(view, image_of),
            "names": view.names,
            "record": record,
            "why": torn,
        }
        sections, strips = story(view), {}
        for node in [one.strip for one in sections if one.strip is not None]:
            images = [(label, image_of(file)) for label, file in split_images(record.nodes[node])]
            strips[node] = [(label, uri) for label, uri in images if uri]
        return {**part, "story": sections, "strips": strips}
    except DiffrlError as error:
        return {"figure": None, "why": str(error)}


def telling_tree(run_dir: Path) -> tuple[TreeRecord | None, str]:
    """Return the tree whose rewards differ most, of the first iteration that has trees with different rewards.

    The first updates change the most, and there most is left to be learned; the last ones have little to tell.

    Returns:
        The tree, None if there is none, and a sentence on those that could not be read, "" if all could.
    """
    kept = list_trees(run_dir)
    torn: list[str] = []
    first: TreeRecord | None = None
    looked = 0
    for iteration in sorted({iteration for iteration, _ in kept}):
        records = []
        for group in (group for n, group in kept if n == iteration):
            try:
                records.append(read_tree(run_dir, iteration, group))
            except DiffrlError as error:
                torn.append(str(error))
        looked += bool(records)
        best = max(records, key=_spread, default=None)
        first = first or best
        if best is not None and _spread(best) > 0:
            first = best
            break
        if looked == LOOKED:
            break
    more = f" The same goes for {len(torn) - 1} more." if len(torn) > 1 else ""
    return first, f"Left out: {torn[0]}{more}" if torn else ""


def _spread(record: TreeRecord) -> float:
    totals = [node.leaf.total for node in record.nodes if node.leaf is not None and node.leaf.total is not None]
    return max(totals) - min(totals) if totals else 0.0


def _images(folder: Path) -> Callable[[str], str]:
    """Return what gives images of a tree until they add up to `TREE_BYTES`."""
    left = TREE_BYTES

    def image_of(file: str) -> str:
        nonlocal left
        path = (folder / file).resolve()
        if left <= 0 or path.parent != folder.resolve():
            return ""
        try:
            uri = data_uri(path, NODE)
        except GalleryError:
            return ""
        left -= len(uri)
        return uri

    return image_of
