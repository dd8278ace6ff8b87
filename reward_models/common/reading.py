"""Files and texts of others, read within bounds: what cannot be read is told, and nothing waits or fills the memory."""

from __future__ import annotations

import codecs
import json
import stat
from pathlib import Path
from typing import Any

MOST_DEPTH = 50
"""Levels of lists and mappings in each other; what writes values again goes down as deep."""

MOST_DIGITS = 100
"""Digits of a whole number: no key is near it, and Python itself refuses thousands."""


class Unreadable(ValueError):  # noqa: N818 - a reason, not yet a message
    """Why a file or a text cannot be taken, to go on after its name: "is nested too deep"."""


def read_text(path: Path, most: int, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Return the text of a file.

    Args:
        path: of the file; a link is followed.
        most: bytes that it may have.
        encoding: utf-8, or utf-8-sig to leave out a byte order mark, and to read UTF-16 where one says so.
        errors: "surrogateescape" keeps what is no UTF-8 as lone surrogates; see `require_utf8`.

    Raises:
        FileNotFoundError: there is no such file.
        Unreadable: it is a folder, a pipe or a device, which may never end; it is too large, or no such text.
    """
    return _decoded(read_bytes(path, most), encoding, errors)


def require_utf8(text: str) -> None:
    """Refuse a text that was read with "surrogateescape" and holds something else than UTF-8.

    Raises:
        Unreadable: it does, such as a row that was written as Latin-1.
    """
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise Unreadable(f"cannot be read as UTF-8 text: {ascii(text[error.start])}; save it as UTF-8") from error


def read_bytes(path: Path, most: int) -> bytes:
    """Return the bytes of a file; see `read_text`."""
    try:
        size = require_file(path)
        data = b""
        if size <= most:
            with path.open("rb") as file:
                data = file.read(most + 1)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileNotFoundError(error.errno, error.strerror, str(path)) from error
    except OSError as error:
        raise Unreadable(f"cannot be read: {error.strerror or error}") from error
    if max(size, len(data)) > most:
        raise Unreadable(f"is too large: it has {max(size, len(data)):,} bytes, and at most {most:,} are read")
    return data


def require_file(path: Path) -> int:
    """Refuse what is no regular file, without opening it.

    Returns:
        Its size in bytes.

    Raises:
        FileNotFoundError: there is nothing.
        OSError: it cannot be looked at.
        Unreadable: it is something else.
    """
    try:
        facts = path.stat()
    except ValueError as error:  # a zero byte in its name
        raise Unreadable(f"cannot be read: {error}") from error
    if not stat.S_ISREG(facts.st_mode):
        kind = "a folder" if stat.S_ISDIR(facts.st_mode) else "a pipe, a socket or a device"
        raise Unreadable(f"cannot be read: it must be a plain file, and is {kind}")
    return facts.st_size


def _decoded(data: bytes, encoding: str, errors: str) -> str:
    marked = encoding == "utf-8-sig" and data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
    try:
        return data.decode("utf-16" if marked else encoding, errors)
    except UnicodeDecodeError as error:
        raise Unreadable(f"cannot be read as UTF-8 text: {error}; save it as UTF-8") from error


def parse_json(text: str) -> Any:
    """Return the value of a JSON text.

    Raises:
        Unreadable: it is no JSON, nested too deep, or holds half of a surrogate pair, which no file can store.
    """
    try:
        value = json.loads(text, parse_int=_whole_number)
    except Unreadable:
        raise
    except RecursionError:
        raise Unreadable(_TOO_DEEP) from None
    except ValueError as error:
        raise Unreadable(f"is no JSON: {error}") from error
    require_shallow(value)
    if "\\u" in text:  # only an escape brings one: text that was decoded has none
        try:
            json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise Unreadable(
                f"holds {ascii(error.object[error.start])}, half of a surrogate pair, which is no character of UTF-8"
            ) from error
    return value


def require_shallow(value: Any) -> None:
    """Refuse a value nested deeper than `MOST_DEPTH`.

    Raises:
        Unreadable: it is.
    """
    level = [value]
    for _ in range(MOST_DEPTH + 1):
        level = [inner for item in level for inner in _within(item)]
        if not level:
            return
    raise Unreadable(_TOO_DEEP)


_TOO_DEEP = f"is nested more than {MOST_DEPTH} levels deep"


def _within(item: Any) -> list[Any]:
    if isinstance(item, dict):
        return list(item.values())
    return item if isinstance(item, list) else []


def _whole_number(text: str) -> int:
    if len(text) > MOST_DIGITS:
        raise Unreadable(f"holds a number of {len(text):,} digits; at most {MOST_DIGITS} are read")
    return int(text)
