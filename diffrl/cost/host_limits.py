"""What the computer and its limits leave to this process: memory, control groups, address space. No torch is needed."""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path

import psutil

GIB = 2**30
MOST_PROCESSES = 8
"""Processes of one machine where the launcher does not say: one for each of the GPUs of a usual server."""

GROUPS = {
    "": ("memory.max", "memory.current", ("inactive_file ", "active_file ")),
    "memory": ("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file ", "total_active_file ")),
}
"""Of control groups of version 2 and 1: files of limit and use, and lines of memory.stat on what can be reclaimed."""


def processes_here(world_size: int) -> int:
    """Return how many of a run's processes share this machine: what the launcher says, else at most eight."""
    local_size = os.environ.get("LOCAL_WORLD_SIZE", "")
    return min(world_size, int(local_size) if local_size.isdigit() and int(local_size) > 0 else MOST_PROCESSES)


def available_host_bytes() -> int:
    """Return the bytes of the computer's memory that are free or can be freed, within every control group's limit."""
    return min(int(psutil.virtual_memory().available), group_bytes())


def group_bytes(membership: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes that this process's control groups leave to it; `sys.maxsize` without a limit.

    Of a limit on a group that this one is in, the least counts. Cached files are reclaimed before anything is killed.
    """
    least = sys.maxsize
    for line in _text(membership).splitlines():
        _, controllers, path = line.split(":", 2)
        if (kind := "memory" if "memory" in controllers.split(",") else controllers) not in GROUPS:
            continue
        top = root / kind
        here = top / path.strip("/")
        for group in (folder for folder in (here, *here.parents) if folder.is_relative_to(top)):
            limit, used, reclaimed = GROUPS[kind]
            limit, used = _text(group / limit).strip(), _text(group / used).strip()
            if limit.isdigit() and used.isdigit():
                lines = _text(group / "memory.stat").splitlines()
                cached = sum(int(line.split()[1]) for line in lines if line.startswith(reclaimed))
                least = min(least, max(0, int(limit) - int(used) + cached))
    return least


def anonymous_bytes() -> int:
    """Return the bytes of memory that this process alone holds, without mapped files; all resident ones off Linux."""
    for line in _text(Path("/proc/self/status")).splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    return int(psutil.Process().memory_info().rss)


def mapped_bytes() -> int:
    """Return the bytes of files that this process has mapped; 0 off Linux."""
    rows = (line.split(None, 5) for line in _text(Path("/proc/self/maps")).splitlines())
    return sum(_span(row[0]) for row in rows if len(row) == 6 and row[5].startswith("/"))


def address_limit() -> int | None:
    """Return the limit on this process's address space in bytes (RLIMIT_AS, `ulimit -v`); None without one."""
    soft, _ = resource.getrlimit(resource.RLIMIT_AS)
    return None if soft == resource.RLIM_INFINITY else soft


def address_space_left() -> int | None:
    """Return the bytes that this process may still map; None without a limit."""
    limit = address_limit()
    return None if limit is None else max(0, limit - int(psutil.Process().memory_info().vms))


def address_words() -> str:
    """Return a sentence on the limit of the address space, what is taken of it, and by mapped files; "" without one."""
    limit, left = address_limit(), address_space_left()
    if limit is None or left is None:
        return ""
    return (
        f"Address space is limited to {limit / GIB:.2f} GiB (ulimit -v, RLIMIT_AS), and {left / GIB:.2f} GiB of it are "
        f"left. Mapped files count in it, {mapped_bytes() / GIB:.2f} GiB here, though they take no memory of their "
        "own: raise it by ulimit -v unlimited. "
    )


def _span(addresses: str) -> int:
    """Return the bytes of a range of addresses as /proc writes it."""
    start, end = addresses.split("-")
    return int(end, 16) - int(start, 16)


def _text(path: Path) -> str:
    """Return a small file's text; "" where there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""
