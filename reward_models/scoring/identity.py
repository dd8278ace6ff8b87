"""What a score depends on, as one hash: change any of it and the sample is scored anew.

    the file's bytes, prompt and metadata     of the sample; prompts only where the scorer uses them
    the scorer's name and version             as its spec says
    its options, defaults filled in           without `device`; files that they name count by what is in them
    its weights on the hub                    by the commit that lies in the local cache
    its source                                of scorers of the user's own: the file of its module
    the other members                         of the sample's group, for scorers that compare them

A scorer of the user's own may depend on anything besides: files that no option names, modules, the weather. Its scores
are known again only if its spec counts a version, by which its author answers for that.

Bytes and not pixels: a known file is then never decoded, so a second run over thousands of images takes seconds. The
price is that the same image saved in another format is scored again.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from reward_models.base import ScorerSpec
from reward_models.registry import SCORERS, factory_of
from reward_models.scoring.choices import Loaded
from reward_models.scoring.items import Item

SCHEME = 4
"""Changes whenever the same sample and scorer would hash otherwise."""
BLOCK = 2**20


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes; OSError where it cannot be read."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def scorer_identity(reward: Loaded) -> str:
    """Return everything of a scorer that its scores depend on, as a hash."""
    return _hash({"scheme": SCHEME, **scorer_facts(reward.settings.name, reward.settings.options, reward.scorer.spec)})


def scorer_facts(name: str, options: Mapping[str, Any], spec: ScorerSpec | None) -> dict[str, Any]:
    """Collect everything that a scorer's scores depend on, as plain values.

    Args:
        name: as it is registered, or "module:Object".
        options: of the scorer.
        spec: of the scorer; None where it is not known.

    Raises:
        OSError: a file that an option names cannot be read.
    """
    factory = factory_of(name)
    known = _with_defaults(factory, options)
    known.pop("device", None)
    repositories = [*_texts(known), *([] if spec is None or spec.weights is None else [spec.weights])]
    return {
        "name": name,
        "spec": None if spec is None else [spec.name, spec.version],
        "options": known,
        "commits": [
            _commit(text) for text in repositories if text.count("/") == 1 and not text.startswith((".", "/", "~"))
        ],
        "files": [mark for text in _texts(known) for mark in _file_marks(text)],
        "source": None if name in SCORERS else _source(factory),
    }


def content_mark(file: Path, inside: bool = False) -> str:
    """Tell what is in a file, whatever its name, place and time: its size, and the SHA-256 of a part of it.

    Of safetensors that is the header and the first 4 KiB of every tensor, of other files beyond 1 MiB 64 blocks evenly
    apart, and of small ones all. So 50 GB take a second; what changes elsewhere within a tensor alone is not seen.

    Args:
        file: to be read.
        inside: of large safetensors the header and 4 KiB in the middle and at the end of every tensor instead.

    Raises:
        OSError: it cannot be read.
    """
    digest, size = hashlib.sha256(), file.stat().st_size
    with file.open("rb") as stream:
        for start, length in _parts(stream, size, file.suffix == ".safetensors", inside):
            stream.seek(start)
            digest.update(stream.read(length))
    return f"{size} {digest.hexdigest()}"


def _parts(stream: IO[bytes], size: int, tensors: bool, inside: bool) -> list[tuple[int, int]]:
    """Return where the parts of a file begin that stand for all of it, and their lengths in bytes."""
    if size <= BLOCK:
        return [(0, size)]
    spread = [(size * i // 64, BLOCK // 64) for i in range(64)] + [(size - BLOCK // 64, BLOCK // 64)]
    try:
        length = 8 + int.from_bytes(stream.read(8), "little")
        header = json.loads(stream.read(length - 8)) if tensors and length < size else {}
        ends = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
        if not ends:
            return spread
        starts = [(a, b) for a, b in sorted(ends)]
        if inside:
            starts = [(max(a, at), b) for a, b in starts for at in ((a + b) // 2 - 2048, b - 4096)]
        return [(0, length), *((length + start, min(b - start, 4096)) for start, b in starts)]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # whoever loads it says so
        return spread


def can_be_cached(reward: Loaded) -> bool:
    """Return whether a scorer's name, version and options say all that its scores depend on.

    They do of a registered one. One of the user's own must count a version, other than the default; one that an option
    gives another, as "module:Object", is not known to.
    """
    if any(re.fullmatch(r"[^\W\d][\w.]*:[^\W\d]\w*", text) for text in _texts(reward.settings.options)):
        return False
    return reward.settings.name in SCORERS or reward.scorer.spec.version != ScorerSpec.version


def sample_key(identity: str, digest: str, item: Item, uses_prompt: bool, group: Sequence[str] = ()) -> str:
    """Return the key of a score.

    Args:
        identity: of the scorer.
        digest: of the item's file.
        item: the sample.
        uses_prompt: whether its prompt matters.
        group: digests of all members of its group, where they matter; in any order.
    """
    prompt = item.prompt if uses_prompt else None
    return _hash([identity, digest, prompt, dict(item.metadata), sorted(group), *_source_digest(item)])


def _source_digest(item: Item) -> list[str]:
    """Return the digest of the image that a sample is an edit of, if its metadata names a file."""
    source = item.metadata.get("source")
    if not isinstance(source, str):
        return []
    try:
        path = item.path.parent / source
        return [file_digest(path)] if path.is_file() else []
    except (OSError, ValueError):
        return []


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, ensure_ascii=False, default=repr)
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def _with_defaults(factory: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    try:
        bound = inspect.signature(factory).bind(**options)
    except (TypeError, ValueError):  # a callable that does not tell its arguments
        return dict(options)
    bound.apply_defaults()
    return dict(bound.arguments)


def _texts(value: Any) -> Iterator[str]:
    """Yield every text in nested options."""
    if isinstance(value, str | Path):
        yield str(value)
    elif isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _texts(value[key])
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from _texts(entry)


def _file_marks(text: str) -> list[str]:
    """Return marks of the file that a text names, or of those in the folder that it names."""
    try:
        path = Path(text).expanduser()
        single, folder = path.is_file(), path.is_dir()
    except (OSError, ValueError, RuntimeError):  # a long prompt template, or "~nobody"
        return []
    if single:
        return [f"{path.name} {content_mark(path)}"]
    files = sorted(Path(parent) / name for parent, _, names in os.walk(path) for name in names) if folder else []
    return [f"{file.relative_to(path)} {content_mark(file)}" for file in files]


def _commit(repository: str) -> str:
    """Return the commit of `main` that the local hub cache holds; "" if it holds none."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    cache = Path(os.environ.get("HF_HUB_CACHE", home / "hub"))
    try:
        return (cache / f"models--{repository.replace('/', '--')}" / "refs" / "main").read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError, ValueError):
        return ""


def _source(factory: Any) -> str | None:
    """Return a digest of the file that a scorer is written in."""
    try:
        return file_digest(Path(str(inspect.getsourcefile(inspect.unwrap(factory)))))
    except (OSError, TypeError):  # of no file
        return None
