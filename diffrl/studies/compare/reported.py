"""Final numbers of a run: the rows on the report split that `diffrl evaluate` has written down in it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from diffrl.errors import DiffrlError
from diffrl.files import read_own
from diffrl.studies.compare.pairing import report_source
from diffrl.studies.compare.shapes import Evaluated, require_shape

EVALUATIONS = "evaluations.jsonl"
BASE, ALIGNED = "base", "aligned"


@dataclass(frozen=True)
class Reported:
    """One row: a mean on the report split.

    Args:
        weights: "aligned", or "base" before alignment.
        guidance_scale: 1 is off.
        prompts: their source.
        n: samples that could be scored.
        means: by reward, and "reward/part".
        digest: of the weights, sha256.
        variety: diversity and distance to the base; empty where they were not asked for.
    """

    weights: str
    guidance_scale: float
    prompts: str
    n: int
    means: Mapping[str, float]
    digest: str | None
    variety: Mapping[str, float] = field(default_factory=dict)


def read_reported(run: Path, config: Mapping[str, Any], iterations: int) -> tuple[Reported, ...]:
    """The rows of a finished run that count: on the report split, of the last iteration, drawn as its evaluations were.

    Args:
        run: its directory.
        config: of the run, as JSON has it.
        iterations: of its training.

    Returns:
        The newest row of each weights and guidance; others, of other samples or steps say, are left aside.

    Raises:
        DiffrlError: the file is damaged.
    """
    path, source, settings = run / EVALUATIONS, report_source(config), config["eval"]
    if source is None or not path.is_file():
        return ()
    wanted = {
        "prompts": source,
        "steps": settings.get("steps"),
        "solver": settings.get("solver"),
        "noise_seed": settings.get("seed"),
    }
    newest: dict[tuple[str, float], Reported] = {}
    for row in read_rows(path):
        of_end = row.get("iteration") == (iterations if row.get("weights") == ALIGNED else 0)
        whole = row.get("n", 0) + row.get("failed", 0) == settings.get("samples")
        if of_end and whole and all(row.get(key) == value for key, value in wanted.items()):
            numbers = {
                name: {key: value for key, value in (row.get(name) or {}).items() if value is not None}
                for name in ("means", "variety")
            }
            one = Reported(row["weights"], row["guidance_scale"], source, row["n"], digest=row.get("digest"), **numbers)
            newest[one.weights, one.guidance_scale] = one
    return tuple(newest.values())


def read_rows(path: Path) -> list[dict[str, Any]]:
    """Read a run's evaluations.jsonl.

    Raises:
        DiffrlError: it cannot be read, or a line is damaged.
    """
    rows = []
    try:
        lines = read_own(path).decode(errors="replace").splitlines()
    except OSError as error:
        raise DiffrlError(f"{path} cannot be read: {error}. Move it away.") from error
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DiffrlError(f"{path}, line {number} is damaged: {error}. Remove that line.") from error
        rows.append(require_shape(Evaluated, row, f"{path}, line {number}"))
    return rows


def missing(
    reported: Sequence[Reported], guidances: Sequence[float], with_base: bool, varied: bool = False
) -> tuple[list[float], bool]:
    """What is still to be measured of a run: the guidances, and whether of its model before alignment too.

    Args:
        reported: what has been measured.
        guidances: that are wanted.
        with_base: whether the model before alignment is wanted.
        varied: whether their variety is.
    """
    have = {(one.weights, one.guidance_scale) for one in reported if one.variety or not varied}
    base = [scale for scale in guidances if with_base and (BASE, scale) not in have]
    aligned = [scale for scale in guidances if (ALIGNED, scale) not in have]
    return list(dict.fromkeys([*aligned, *base])), bool(base)
