"""Final numbers of a run: the rows on the report split that `diffrl evaluate` has written down in it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

from pydantic import BeforeValidator

from diffrl.errors import DiffrlError
from diffrl.files import read_own
from diffrl.studies.compare.pairing import report_source
from diffrl.studies.compare.stored import Count, Number, Stored, parse_stored

EVALUATIONS = "evaluations.jsonl"
BASE, ALIGNED = "base", "aligned"


def _without_null(values: Any) -> Any:
    """Leave out the numbers that were not finite."""
    return {key: value for key, value in values.items() if value is not None} if isinstance(values, dict) else values


Numbers = Annotated[dict[str, Number], BeforeValidator(_without_null)]


class Reported(Stored):
    """A row of evaluations.jsonl, as `diffrl evaluate` writes it (`diffrl.export.measured.Measured`)."""

    weights: str  # "aligned", or "base" before alignment
    guidance_scale: Number  # 1 is off
    n: Count  # samples that could be scored
    failed: Count = 0  # the others
    means: Numbers  # by reward, and "reward/part"
    digest: str | None = None  # of the weights, sha256
    variety: Numbers | None = None  # diversity and distance to the base; None where they were not asked for
    iteration: Count | None = None  # of the checkpoint; 0 for base
    prompts: str | None = None  # their source
    steps: Count | None = None  # of the denoising
    solver: str | None = None  # its solver
    noise_seed: int | None = None  # of the noise


def read_reported(run: Path, config: Mapping[str, Any], iterations: int) -> tuple[Reported, ...]:
    """Read the rows of a finished run that count: on the report split, of the last iteration, sampled as it evaluates.

    Returns:
        The newest row of each weights and guidance; others, of other samples or steps say, are left aside.

    Raises:
        DiffrlError: the file is damaged.
    """
    path, source, settings = run / EVALUATIONS, report_source(config), config["eval"]
    if source is None or not path.is_file():
        return ()
    wanted = (source, *(settings.get(name) for name in ("steps", "solver", "seed", "samples")))
    newest: dict[tuple[str, float], Reported] = {}
    for row in read_rows(path):
        of_end = row.iteration == (iterations if row.weights == ALIGNED else 0)
        if of_end and (row.prompts, row.steps, row.solver, row.noise_seed, row.n + row.failed) == wanted:
            newest[row.weights, row.guidance_scale] = row
    return tuple(newest.values())


def read_rows(path: Path) -> list[Reported]:
    """Read a run's evaluations.jsonl.

    Raises:
        DiffrlError: it cannot be read, or a line is damaged.
    """
    try:
        lines = read_own(path).decode(errors="replace").splitlines()
    except OSError as error:
        raise DiffrlError(f"{path} cannot be read: {error}. Move it away.") from error
    return [
        parse_stored(Reported, line, f"{path}, line {number}", "Remove that line.")
        for number, line in enumerate(lines, start=1)
    ]


def missing(
    reported: Sequence[Reported], guidances: Sequence[float], with_base: bool, varied: bool = False
) -> tuple[list[float], bool]:
    """Return what is still to be measured of a run: the guidances, and whether of its model before alignment too."""
    have = {(one.weights, one.guidance_scale) for one in reported if one.variety or not varied}
    base = [scale for scale in guidances if with_base and (BASE, scale) not in have]
    aligned = [scale for scale in guidances if (ALIGNED, scale) not in have]
    return list(dict.fromkeys([*aligned, *base])), bool(base)
