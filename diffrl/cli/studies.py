"""Commands that measure over several runs, or several precisions."""

from __future__ import annotations

from typing import Annotated

import typer

from diffrl.cli.shared import (
    ConfigArgument,
    OverridesArgument,
    app,
    console,
    load,
    quiet,
)
from diffrl.studies.requests import CompareRequest, FidelityRequest
from reward_models.common.options import grouped


@app.command()
@grouped
def fidelity(
    *,
    config: ConfigArgument,
    overrides: OverridesArgument = None,
    request: FidelityRequest,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure how well cheap pools rank candidates, against the training precision with all steps."""
    resolved = load(config, overrides)
    quiet()
    from diffrl.studies.fidelity.command import show_fidelity

    show_fidelity(resolved, request, console(), as_json)


@app.command()
@grouped
def compare(
    *,
    request: CompareRequest,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and train nothing.")] = False,
    report_only: Annotated[bool, typer.Option("--report-only", help="Only write table and figures again.")] = False,
) -> None:
    """Compare configurations at equal budget over several seeds: table, curves, paired differences, cost to a score.

    Runs of one seed share prompts, their order and noise, or are refused. Curves
    are of the split tune, final numbers of the split report, as by diffrl
    evaluate. What the seeds are too few for is printed as not resolved.
    """
    from diffrl.errors import ConfigError

    training = {
        "configurations": request.configs,
        "--budget": request.budget,
        "--dry-run": dry_run,
        "--seeds": request.seeds,
        "--guidance": request.guidance,
        "--jobs": request.jobs,
        "--variety": request.variety,
    }
    if report_only and (beside := [name for name, value in training.items() if value]):
        raise ConfigError(
            "--report-only takes --out, --metric, --target, --detect, --sd and --prices, and nothing to train. Got "
            f"{', '.join(beside)} too. Remove that."
        )
    from diffrl.studies.compare import compare as start
    from diffrl.studies.compare import show_report

    if report_only:
        reported = (request.metric, request.target, request.detect, request.sd, request.prices)
        show_report(request.out, console(), *reported)
    else:
        start(request, console(), dry_run)
