"""Which names a server answers to: a web page elsewhere must not read the gallery by a name that it points here."""

from __future__ import annotations

import ipaddress
import re
import socket
from functools import lru_cache

LOOPBACK = ("127.0.0.1", "localhost", "::1")
REFUSED = (
    "The gallery answers to the names and addresses of its own machine, so that no web page elsewhere can read it. "
    "Got {host!r}. Open it by the machine's address."
)


def answers_to(header: str, host: str) -> bool:
    """Whether a request is for this server by a name that is known without asking; see also `is_full_name`.

    Args:
        header: the request's Host, with or without a port.
        host: where the server listens; on a loopback address only loopback names are its own.
    """
    name = name_in(header)
    if not name or name in LOOPBACK or host in LOOPBACK:
        return name in LOOPBACK
    try:
        ipaddress.ip_address(name)
        return True  # rebinding needs a name; nobody can point an address elsewhere
    except ValueError:
        own = socket.gethostname().lower()
        return name in (host.lower(), own, f"{own}.local")


def is_full_name(header: str) -> bool:
    """Whether a request calls the machine by its full name; the first call may wait for a name server."""
    return name_in(header) == full_name()


def name_in(header: str) -> str:
    """The name or address in a Host header, without port and brackets; "" if there is none."""
    found = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(:\d{1,5})?", header)
    return found[1].strip("[]").lower().rstrip(".") if found else ""


@lru_cache(maxsize=1)
def full_name() -> str:
    """The machine's full name, which a name server may be asked for."""
    return socket.getfqdn().lower().rstrip(".")
