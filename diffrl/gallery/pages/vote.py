"""Blind votes. (Owned by the vote builder.)"""

from __future__ import annotations

from typing import Any


def add_routes(app: Any, site: Any) -> None:
    """Routes that take votes."""
