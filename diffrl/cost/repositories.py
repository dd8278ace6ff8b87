"""How large repositories on the hub are, and under which terms, before they are fetched.

What was not seen is told as "not known here".
"""

from __future__ import annotations

from collections.abc import Mapping

from diffrl.models.published import hub_facts

NOT_KNOWN = "not known here"
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


def parameters_of(name: str) -> Mapping[str, int]:
    """Return the numbers in a repository's weights, by part of the pipeline; empty if they are not known."""
    return {part: facts["parameters"] for part, facts in _weights(name).items()}


def bytes_of_numbers(name: str) -> Mapping[str, int] | None:
    """Return the bytes of each number in a repository's files, by part of the pipeline; None if they are not known."""
    dtypes = {part: facts["dtype"] for part, facts in _weights(name).items()}
    return None if not dtypes or None in dtypes.values() else {part: BYTES[dtype] for part, dtype in dtypes.items()}


def size_of(name: str) -> int | None:
    """Return the bytes that are fetched of a repository; None if how its files hold their numbers is not known."""
    facts = hub_facts(name)
    if facts is not None and not _weights(name):
        return int(facts["bytes"])
    stored = bytes_of_numbers(name)
    return None if stored is None else sum(count * stored[part] for part, count in parameters_of(name).items())


def size_words(name: str) -> str:
    """Say how much is fetched of a repository."""
    size, count = size_of(name), sum(parameters_of(name).values())
    if size is not None:
        return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"
    if count:
        kinds = ("bfloat16", "float32")
        each = " or ".join(f"{count * BYTES[kind] / 1e9:.1f} GB as {kind}" for kind in kinds)
        return f"{each}, which of them is {NOT_KNOWN}"
    return f"size {NOT_KNOWN}"


def terms_words(name: str) -> str:
    """Say a repository's licence and whether it is gated."""
    facts = hub_facts(name) or {"licence": None, "gated": None}
    gate = f"whether it is gated: {NOT_KNOWN}" if facts["gated"] is None else "not gated"
    if facts["gated"]:
        gate = "gated: accept its terms on that page with an account, then run `hf auth login`"
    return f"licence: {facts['licence'] or NOT_KNOWN}; {gate}"


def _weights(name: str) -> Mapping[str, Mapping[str, object]]:
    """Return the facts of a repository's parts that hold weights; of a reward's the whole, as the part ""."""
    facts = hub_facts(name) or {}
    return facts.get("components") or ({"": facts} if "parameters" in facts else {})
