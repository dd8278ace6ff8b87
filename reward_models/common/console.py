"""Standard output and error that cannot end what is under way: a closed pipe, a full disk, another encoding."""

from __future__ import annotations

import errno
import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TextIO

from reward_models.common.errors import RewardError


class LastingFile(io.FileIO):
    """A file descriptor whose writes never fail: what cannot be written is dropped, and `lost` says why.

    Every later write is tried again, so a disk with space again takes the rest.
    """

    lost: OSError | None = None
    origin: Any = None
    """What the descriptor belongs to, which would close it if nobody held it."""

    def write(self, data: Any) -> int:
        """Write `data`, or drop it; of a non-blocking pipe, wait until it takes some."""
        try:
            while (written := super().write(data)) is None:
                select.select([], [self], [])
            return written
        except OSError as error:
            self.lost = self.lost or error
            return memoryview(data).nbytes


def lasting(stream: TextIO) -> TextIO:
    """Return a stream to the same descriptor that neither a reader, a disk nor an encoding makes fail.

    Characters that the encoding lacks become "?". A stream that is no plain file (of a notebook, of a test, one that
    lasts already) is returned as it is.
    """
    if type(stream) is not io.TextIOWrapper or isinstance(_file(stream), LastingFile):
        return stream
    try:
        stream.flush()
        raw = LastingFile(stream.fileno(), "wb", closefd=False)
    except (OSError, ValueError):  # no descriptor, or none that is written to
        return stream
    raw.origin = stream
    buffered = isinstance(stream.buffer, io.BufferedWriter)
    return io.TextIOWrapper(
        io.BufferedWriter(raw) if buffered else raw,
        encoding=stream.encoding,
        errors="replace" if stream.errors == "strict" or stream.encoding == "ascii" else stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def make_streams_last() -> None:
    """Replace `sys.stdout` and `sys.stderr` of a program by lasting ones, once at its start.

    Descriptors 0 to 2 that are closed become /dev/null, or the first file that is opened would take what is printed.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(descriptor)
    for name in ("stdout", "stderr"):
        if (stream := getattr(sys, name)) is not None:
            setattr(sys, name, lasting(stream))


@contextmanager
def output_required() -> Iterator[None]:
    """Treat it as no fault that the reader of a command's only result has gone.

    Raises:
        RewardError: it was to exit with 0, and something printed is lost.
    """
    try:
        yield
    except SystemExit as end:
        if not end.code and (reason := _lost(sys.stdout)):
            raise RewardError(f"Standard output cannot be written: {reason}. Free space, or print elsewhere.") from None
        raise


def _lost(stream: TextIO | None) -> str:
    if stream is None:
        return ""
    stream.flush()
    lost = getattr(_file(stream), "lost", None)
    return "" if lost is None or lost.errno == errno.EPIPE else str(lost.strerror)


def _file(stream: Any) -> Any:
    buffer = getattr(stream, "buffer", None)
    return getattr(buffer, "raw", buffer)
