"""Memory that is free again goes back to the system; the C library would keep it for requests that may not come."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cache


def trim() -> bool:
    """Give free memory back to the system; False where there is none, or the C library cannot (only glibc can)."""
    function = _malloc_trim()
    return function is not None and bool(function(0))


@cache
def _malloc_trim() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim  # type: ignore[no-any-return]
    except (OSError, AttributeError, TypeError):  # another C library; Windows has no CDLL(None)
        return None
