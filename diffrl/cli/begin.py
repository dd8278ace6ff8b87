"""The first commands of a newcomer: a recipe to start from, the demo, and whether this machine does what is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffrl.cli.shared import OverridesArgument, app, console, load, quiet
from diffrl.doctor.request import DoctorRequest
from reward_models.common.options import grouped


@app.command()
def init(
    recipe: Annotated[
        str, typer.Argument(metavar="[RECIPE]", help="Such as quickstart or sd3/flow_grpo.")
    ] = "quickstart",
    out: Annotated[Path | None, typer.Option(help="File to write. Default: RECIPE.yaml, in this folder.")] = None,
    listed: Annotated[bool, typer.Option("--list", help="Show all recipes and write nothing.")] = False,
) -> None:
    """Write a recipe that comes with diffrl to a file of your own, to change and train.

    diffrl init sd3/flow_grpo --out mine.yaml
    """
    from diffrl.bundled import recipe_summary, recipes, write_recipe

    if listed:
        for name, file in recipes().items():
            typer.echo(f"{name:<28}{recipe_summary(file)}")
        return
    written, name = write_recipe(recipe, out)
    typer.echo(
        f"The recipe {name} is in {written}. Its header says what it is for and how it is started. Whether this "
        f"machine can run it: diffrl check {written}"
    )


@app.command()
def demo(overrides: OverridesArgument = None) -> None:
    """Align the tiny pipeline that comes with diffrl: the recipe quickstart, minutes on two CPU cores.

    diffrl demo run.name=second run.seed=1
    """
    from diffrl.bundled import find_recipe

    resolved = load(find_recipe("quickstart")[1], overrides)
    quiet()
    from diffrl.lifecycle import train as start

    start(resolved, console())


@app.command()
@grouped
def doctor(*, request: DoctorRequest) -> None:
    """Examine this machine: does it compute what training needs, as exactly, in the memory and at the speed planned?

    diffrl doctor --gpu

    Nothing is downloaded: weights are random. Exit code: 0; 2 for a mistake in what was asked; 3 if a row failed.
    """
    quiet()
    from diffrl.doctor.command import examine

    if any(outcome.status == "fail" for outcome in examine(request, typer.echo)):
        raise typer.Exit(3)
