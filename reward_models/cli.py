"""The command `score`: of `python -m reward_models`, and, with pictures drawn first, of diffrl.

Nothing heavy is imported until it runs, so `--help` answers at once.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from reward_models.errors import RewardError

if TYPE_CHECKING:
    from reward_models.scoring.drawing import Draw

WHAT, REWARDS, RESULTS = "What is scored", "Rewards", "Results"
DRAW, SERVE, LOOK = "Draw first", "Serve", "Instead of scoring"


def _option(help_text: str, panel: str, *names: str, **facts: Any) -> Any:
    return typer.Option(*names, help=help_text, rich_help_panel=panel, **facts)


Paths = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PATH]...", help='Pictures, videos, folders, "patterns/**/*.png", directories of runs.'),
]
Rewards = Annotated[list[str] | None, _option("A name, module:Scorer, or LABEL=NAME. Several may be given.", REWARDS)]
Options = Annotated[list[str] | None, _option("[LABEL.]KEY=VALUE, an option of a reward's. Several.", REWARDS)]
Config = Annotated[Path | None, _option("YAML with `rewards:` as for training; gives a weighted total too.", REWARDS)]
Device = Annotated[str | None, _option("auto, cpu, cuda or cuda:1. Default: what --config says, else auto.", REWARDS)]
Dtype = Annotated[str | None, _option("float32, bfloat16 or float16, of rewards with weights.", REWARDS)]
BatchSize = Annotated[
    int | None,
    _option("Samples a reward gets at once. Default: of --config, else its own.", REWARDS, min=1),
]
Prompt = Annotated[str | None, _option("The prompt of every picture.", WHAT)]
Prompts = Annotated[
    str | None,
    _option("A .txt file, a line a picture in sorted order; or .jsonl of objects with file and prompt.", WHAT),
]
Stage = Annotated[str | None, _option("Of runs: only train, eval, ...", WHAT)]
Iteration = Annotated[list[int] | None, _option("Of runs: only this iteration. Several may be given.", WHAT)]
Media = Annotated[str | None, _option("Only files that are: image or video.", WHAT)]
Limit = Annotated[int | None, _option("Only the first files; with --pipeline, prompts.", WHAT, min=1)]
Out = Annotated[list[Path] | None, _option("A .jsonl, .csv or .parquet file. Several may be given.", RESULTS)]
Plot = Annotated[Path | None, _option("A folder, or one .png, for histograms and correlations.", RESULTS)]
Strict = Annotated[bool, _option("Exit with 3 if any file failed; without it, only if all did.", RESULTS, "--strict")]
AsJson = Annotated[bool, _option("Print the summary, or the list, as JSON.", RESULTS, "--json")]
Cache = Annotated[Path | None, _option("Known scores. Default: ~/.cache/diffrl/scores.sqlite.", RESULTS)]
NoCache = Annotated[bool, _option("Look up nothing and keep nothing.", RESULTS, "--no-cache")]
Pipeline = Annotated[str | None, _option("A pipeline, or a run, that draws --prompts into --images.", DRAW)]
Images = Annotated[Path | None, _option("Folder for the pictures; it must be new or empty.", DRAW)]
PerPrompt = Annotated[int, _option("Pictures of each prompt.", DRAW, min=1)]
Seed = Annotated[int, _option("Of the noise.", DRAW, min=0)]
Steps = Annotated[int | None, _option("Denoising steps.", DRAW, min=1)]
Guidance = Annotated[float | None, _option("1 is off.", DRAW, min=1.0)]
DrawDtype = Annotated[str | None, _option("Of the pipeline: float32 or bfloat16.", DRAW)]
ListAll = Annotated[bool, _option("Show all rewards and what they need.", LOOK, "--list")]
SelfTest = Annotated[list[str] | None, _option("Does this reward tell good from bad? Exit 0 or 3.", LOOK)]
Check = Annotated[list[str] | None, _option("Does this reward keep the contract? Exit 0 or 3.", LOOK)]
Serve = Annotated[bool, _option("Serve --reward ... over HTTP to `remote` rewards elsewhere.", SERVE, "--serve")]
Host = Annotated[str, _option("Address to listen on.", SERVE)]
Port = Annotated[int, _option("0 takes a free one.", SERVE, min=0, max=65535)]
Token = Annotated[str | None, _option("What clients must show. Others may see it: better --token-file.", SERVE)]
TokenFile = Annotated[Path | None, _option("A file that holds the token.", SERVE)]
Anonymous = Annotated[bool, _option("No token on an open address.", SERVE, "--allow-anonymous")]
ServerOptions = Annotated[list[str] | None, _option("KEY=VALUE, such as max_body_mb=16. Several.", SERVE)]


def score_command(draw: Draw | None) -> Callable[..., None]:
    """The command, to be registered with typer.

    Args:
        draw: draws pictures for `--pipeline`; None: there is nothing to draw with.
    """

    def score(
        paths: Paths = None,
        reward: Rewards = None,
        option: Options = None,
        config: Config = None,
        device: Device = None,
        dtype: Dtype = None,
        batch_size: BatchSize = None,
        prompt: Prompt = None,
        prompts: Prompts = None,
        stage: Stage = None,
        iteration: Iteration = None,
        media: Media = None,
        limit: Limit = None,
        out: Out = None,
        plot: Plot = None,
        strict: Strict = False,
        as_json: AsJson = False,
        cache: Cache = None,
        no_cache: NoCache = False,
        pipeline: Pipeline = None,
        images: Images = None,
        per_prompt: PerPrompt = 1,
        seed: Seed = 0,
        steps: Steps = None,
        guidance_scale: Guidance = None,
        pipeline_dtype: DrawDtype = None,
        list_all: ListAll = False,
        self_test: SelfTest = None,
        check: Check = None,
        serve: Serve = False,
        host: Host = "127.0.0.1",
        port: Port = 8123,
        token: Token = None,
        token_file: TokenFile = None,
        allow_anonymous: Anonymous = False,
        server_option: ServerOptions = None,
    ) -> None:
        """Score pictures and videos with one or several rewards: table, rows, histograms, correlations.

        diffrl score pictures/ --prompts prompts.txt --reward pickscore --reward aesthetic --out scores.jsonl

        Exit code: 0; 2 for a mistake in what was asked; 3 if every reward failed for every file, or with --strict any.
        """
        _quiet_libraries()
        given = [bool(paths), pipeline is not None, list_all, bool(self_test), bool(check), serve]
        if sum(given) != 1:
            raise RewardError(
                "Give one thing to do: PATHs to score, --pipeline to draw from, --list, --self-test NAME, --check NAME "
                f"or --serve. Got {sum(given) or 'none'} of them."
            )
        if pipeline is not None and draw is None:
            raise RewardError("python -m reward_models draws no pictures. Use diffrl score --pipeline, or give PATHs.")
        if (pipeline is None) != (images is None):
            raise RewardError("--pipeline PIPELINE and --images FOLDER go together. Got one without the other.")
        from reward_models.scoring import command
        from reward_models.scoring.drawing import Drawing
        from reward_models.scoring.sources import Selection

        names = [*(reward or ()), *(self_test or ()), *(check or ())]
        rewards = command.RewardRequest(names, tuple(option or ()), config, device, dtype, batch_size)
        if list_all:
            raise typer.Exit(command.show_list(as_json))
        if self_test or check:
            raise typer.Exit(command.examine(rewards, contract=bool(check)))
        if serve:
            address = {"host": host, "port": port, "token": token, "token_file": token_file}
            options = tuple(server_option or ())
            raise typer.Exit(command.serve_rewards(rewards, options, **address, allow_anonymous=allow_anonymous))
        drawing = None
        if pipeline is not None and images is not None:
            wanted = (prompt, prompts, limit, per_prompt, seed, steps, guidance_scale, device or "auto", pipeline_dtype)
            drawing = Drawing(pipeline, images, *wanted)
            prompt = prompts = limit = None  # what is drawn has its prompts beside it
        selection = Selection(
            tuple(paths or ()), stage, tuple(iteration or ()), prompt, Path(prompts) if prompts else None, media, limit
        )
        request = command.ScoreRequest(
            selection, rewards, tuple(out or ()), plot, cache, not no_cache, strict, as_json, drawing
        )
        raise typer.Exit(command.run(request, draw))

    return score


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line; a mistake of the user's ends in one message and exit code 2, without a traceback."""
    app = typer.Typer(
        add_completion=False, pretty_exceptions_enable=False, context_settings={"help_option_names": ["-h", "--help"]}
    )
    app.command()(score_command(None))
    sys.path.append(os.getcwd())  # for rewards of the user's own, "module:Object"
    try:
        app(args=list(sys.argv[1:] if arguments is None else arguments), prog_name="python -m reward_models")
    except RewardError as error:
        _fail(str(error), error.exit_code)
    except OSError as error:
        if error.filename is None:  # not about a file: a bug of ours, or of the network
            raise
        _fail(f"{error.strerror}: {error.filename}. Check that it is a place you may write to.", 2)
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _quiet_libraries() -> None:
    """Keep other libraries' advice to their developers out of ours; errors still come through."""
    for name in ("torch.utils._pytree", "huggingface_hub.utils._http"):
        logging.getLogger(name).addFilter(_is_error)
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def _fail(message: str, code: int) -> None:
    typer.echo(f"error: {message}", err=True)
    raise SystemExit(code) from None
