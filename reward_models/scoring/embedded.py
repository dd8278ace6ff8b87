"""Prompts that tools write into the images that they make: AUTOMATIC1111's `parameters`, ComfyUI's graph.

PNG text "parameters", EXIF UserComment   the words before "Negative prompt:" and "Steps:"
PNG text "prompt", EXIF Model "prompt:"   a graph: the positive text of the sampler that made the image
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from PIL import ExifTags, Image

from reward_models.common.errors import RewardError
from reward_models.common.image_files import opened
from reward_models.common.reading import Unreadable, parse_json

SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
A1111, COMFYUI = "words in the file, as A1111 writes them", "ComfyUI's graph in the file"

TEXTS = ("text", "text_g", "text_l", "clip_g", "clip_l", "t5xxl", "prompt", "value", "string")
"""Inputs of ComfyUI's nodes that hold words."""

NOT_WORDS = ("model", "clip", "vae", "control_net", "image", "mask", "latent", "samples")
"""Inputs that lead to no words, of nodes between a sampler and its text."""

_END = re.compile(r"(?:^|\s)(?:Negative prompt:|Steps: \d+(?:,|\s|$))")
_CODES = (b"ASCII\0\0\0", b"UNICODE\0", b"\0" * 8)
"""Before an EXIF comment, its encoding."""
_CANNOT_TELL = "The prompt in {} cannot be told: its ComfyUI graph {}. Put a caption beside it."


def embedded_prompt(path: Path) -> tuple[str | None, str | None, str | None]:
    """Read the prompt that is written in an image file.

    Returns:
        The prompt, where it stands, and why it cannot be told; all None of a file that says nothing, or is no image.
    """
    if path.suffix.lower() not in SUFFIXES:
        return None, None, None
    try:
        facts = path.stat()
    except OSError:  # scoring it says why
        return None, None, None
    return _read(path, facts.st_mtime_ns, facts.st_size)


@lru_cache(maxsize=2**16)
def _read(path: Path, changed: int, size: int) -> tuple[str | None, str | None, str | None]:
    try:
        with opened(path) as image:
            words, graph = _notes(image)
    except RewardError:
        return None, None, None
    if words is not None:
        prompt = _END.split(words, maxsplit=1)[0].strip()
        return (prompt, A1111, None) if prompt else (None, A1111, f"The prompt written in {path} is empty.")
    if graph is None:
        return None, None, None
    try:
        return positive_text(parse_json(graph)), COMFYUI, None
    except Unreadable as error:
        return None, COMFYUI, _CANNOT_TELL.format(path, error)


def _notes(image: Image.Image) -> tuple[str | None, str | None]:
    """Return what A1111 and ComfyUI wrote into an opened image; its pixels are not read."""
    info = image.info
    if image.format == "PNG":
        words, graph = _text(info.get("parameters")), _text(info.get("prompt"))
        plain = graph is not None and not graph.lstrip().startswith("{")  # another tool's, in words
        return (words or graph, None) if plain else (words, graph)
    exif = image.getexif()
    comment = exif.get_ifd(ExifTags.IFD.Exif).get(ExifTags.Base.UserComment)
    model = _text(exif.get(ExifTags.Base.Model)) or ""
    return _comment(comment), model.removeprefix("prompt:") if model.startswith("prompt:") else None


def _text(value: Any) -> str | None:
    return str(value) if isinstance(value, str) and value.strip() else None


def _comment(value: Any) -> str | None:
    """Return an EXIF user comment of words and settings; eight bytes say its encoding."""
    data = value.encode() if isinstance(value, str) else bytes(value or b"")
    wide = data.startswith(b"UNICODE\0")
    data = data[8:] if data.startswith(_CODES) else data
    texts = [data.decode(name, "replace").strip("\0") for name in (("utf-16-be", "utf-16-le") if wide else ("utf-8",))]
    return next((text for text in texts if _END.search(text)), None)  # cameras and editors write other things here


def positive_text(graph: Any) -> str:
    """Return the positive text of the sampler whose image a ComfyUI graph saves.

    Links are followed from every saved image up to the nearest samplers, and from their conditioning to its text.

    Args:
        graph: nodes by id: {"class_type": ..., "inputs": {name: value, or [id, output]}}.

    Raises:
        Unreadable: it is no graph, or leads to no text, or to several.
    """
    if not isinstance(graph, dict) or not all(isinstance(node, dict) for node in graph.values()):
        raise Unreadable("is no mapping of nodes")
    used = {link[0] for node in graph.values() for link in _links(node).values()}
    ends = [name for name, node in graph.items() if name not in used and _links(node)]
    texts = {text for end in ends for text in _of_image(graph, end, set())}
    if len(texts) != 1:
        raise Unreadable(f"leads to {len(texts) or 'no'} positive text{'s' if len(texts) > 1 else ''}")
    return texts.pop()


def _of_image(graph: Mapping[str, Any], name: str, seen: set[str]) -> Iterator[str]:
    """Yield texts of the samplers nearest before a node that has an image."""
    if name in seen or name not in graph:
        return
    seen.add(name)
    links = _links(graph[name])
    for key in ("positive", "guider", "conditioning"):
        if key in links:
            yield from _of_conditioning(graph, links[key], set())
            return
    for link in links.values():
        yield from _of_image(graph, link[0], seen)


def _of_conditioning(graph: Mapping[str, Any], link: tuple[str, int], seen: set[tuple[str, int]]) -> Iterator[str]:
    """Yield texts that a conditioning was made from."""
    name, output = link
    if link in seen or name not in graph:
        return
    seen.add(link)
    node = graph[name]
    links, inputs = _links(node), node.get("inputs", {})
    if "positive" in links:  # a node between: its first output is the positive one
        yield from _of_conditioning(
            graph, links["negative" if output == 1 and "negative" in links else "positive"], seen
        )
        return
    words = {inputs[key].strip() for key in TEXTS if isinstance(inputs.get(key), str) and inputs[key].strip()}
    if words:
        yield from words
        return
    for key, before in links.items():
        if not key.startswith(NOT_WORDS):
            yield from _of_conditioning(graph, before, seen)


def _links(node: Mapping[str, Any]) -> dict[str, tuple[str, int]]:
    """Return inputs of a node that come from another."""
    inputs = node.get("inputs")
    return {
        key: (value[0], value[1])
        for key, value in (inputs.items() if isinstance(inputs, dict) else ())
        if isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and type(value[1]) is int
    }
