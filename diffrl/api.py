"""What Python code calls where a shell calls the command line: the same functions, with exceptions for exit codes.

Everything here is reached as `diffrl.NAME`; docs/python.md shows it on one page.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from diffrl import lifecycle
from diffrl.checkpoint.state import restore_rng, rng_state
from diffrl.config import Config
from diffrl.errors import ConfigError, DiffrlError
from diffrl.export.generate import asked_prompts, draw, open_drawing
from diffrl.export.pictures import run_or_model
from diffrl.export.request import GenerateRequest
from diffrl.models.images import pil_or_frames
from diffrl.run.callbacks import Callback, require_callbacks
from diffrl.run.checkpoints import Choice, require_choice
from diffrl.run.results import Run, open_run
from diffrl.terminal.signals import Ended
from reward_models import RewardError, Scorer, score_media
from reward_models.common.console import lasting
from reward_models.common.messages import show
from reward_models.scoring.choices import choose, load

if TYPE_CHECKING:
    from PIL.Image import Image
    from torch import Tensor


def train(config: Config, callbacks: Sequence[Callback] = (), *, quiet: bool = False) -> Run:
    """Align a model: start the run that a configuration describes, and see it through.

    The same configuration is the same run, bit for bit on one machine, however many were trained in this process
    before. The global random generators are as they were when it returns.

    Ctrl-C ends the run after the iteration that it is at, with a checkpoint; a second one ends it at once. In a thread
    other than the main one, where Python delivers no signals, a callback can end it.

    Args:
        config: the run, from `load_config`.
        callbacks: told what happens; see `Callback`. With several processes, on the main one alone.
        quiet: show nothing. What the run has to say is in its log.txt all the same.

    Returns:
        The finished run; or the run so far, where a callback ended it.

    Raises:
        ConfigError: something is wrong with the configuration, or the run's directory is taken already.
        GuardStop: a guard ended the run.
        DiffrlError: a reward, the disk or another process failed.
        KeyboardInterrupt: Ctrl-C, after a checkpoint if anything was trained. `resume` goes on.
        Exception: whatever a callback raised, after a checkpoint likewise.
    """
    if not isinstance(config, Config):
        raise ConfigError(
            f"diffrl.train takes a configuration. Got {show(config)}, a {type(config).__name__}. Read one with "
            "diffrl.load_config(path)."
        )
    require_callbacks(callbacks)
    with _guest():
        return open_run(lifecycle.train(config, _console(quiet), callbacks, owns_process=False))


def resume(
    run: Run | str | Path,
    overrides: Mapping[str, Any] | Sequence[str] = (),
    callbacks: Sequence[Callback] = (),
    *,
    from_start: bool = False,
    accept_changed_inputs: bool = False,
    quiet: bool = False,
) -> Run:
    """Go on with a run from its newest whole checkpoint, as if it had never stopped; or further than was planned.

    Args:
        run: a run, or its directory.
        overrides: as for `load_config`: {"run.iterations": 320} trains on to there (docs/checkpoints.md).
        callbacks: as for `train`.
        from_start: begin anew instead; what the run holds is set aside, not lost.
        accept_changed_inputs: go on also with prompts, a base or rewards of other contents than it was trained with.
        quiet: as for `train`.

    Returns:
        The finished run; or the run so far, where a callback ended it.

    Raises:
        ConfigError: no run there, or it is configured otherwise now, or has other inputs.
        CheckpointError: none of its checkpoints can be used.
        GuardStop: as for `train`, and so for the others.
        DiffrlError: as for `train`.
        KeyboardInterrupt: as for `train`.
        Exception: as for `train`.
    """
    require_callbacks(callbacks)
    with _guest():
        path, console = run.path if isinstance(run, Run) else run, _console(quiet)
        options = {"accept_changed_inputs": accept_changed_inputs, "owns_process": False}
        return open_run(lifecycle.resume(path, console, from_start, overrides, callbacks, **options))


def generate(
    source: Run | str | Path,
    prompts: str | Sequence[str],
    *,
    per_prompt: int = 1,
    seed: int = 0,
    step: int | None = None,
    best: bool = False,
    newest: bool = False,
    steps: int | None = None,
    guidance_scale: float | None = None,
    batch: int = 64,
    device: str = "auto",
    family: str | None = None,
    dtype: str = "float32",
    variant: str | None = None,
    height: int | None = None,
    width: int | None = None,
    frames: int | None = None,
    image: str | Path | None = None,
) -> list[Image | Tensor]:
    """Generate images or videos with a run's aligned weights, or from a pipeline: those that `diffrl generate` writes.

    The noise of a sample depends on the seed, its prompt's place in the list and its number alone, so two calls that
    differ in the weights only can be compared sample by sample.

    Args:
        source: a run, or its directory; or a pipeline's directory or hub id.
        prompts: one, or several.
        per_prompt: samples of each.
        seed: of the noise.
        step: of a run, the checkpoint of this iteration.
        best: of a run, the checkpoint with the best first held-out reward.
        newest: of a run, the newest checkpoint; with none of the three, the newest healthy one.
        steps: denoising steps; None = those of the run's evaluation, of a pipeline 28.
        guidance_scale: classifier-free guidance; 1 is none. None = that of the run's evaluation, of a pipeline 1.
        batch: samples at once; bounds memory.
        device: auto, cpu or cuda.
        family: of a pipeline; None = what its class says.
        dtype: of a pipeline, float32 or bfloat16.
        variant: of a pipeline's files of weights, such as fp16; None = the plain ones.
        height: in pixels, of a pipeline's images; None = its own.
        width: in pixels, likewise.
        frames: of a pipeline's videos; None = its own.
        image: path of the image that the prompts edit, for models that edit.

    Returns:
        PIL images, or of a video model tensors (F, 3, H, W) uint8; all samples of the first prompt, then of the next.

    Raises:
        ConfigError: no such run or pipeline, or what was asked for does not add up.
        CheckpointError: the run has no checkpoint that can be used.
    """
    texts = [prompts] if isinstance(prompts, str) else list(prompts)
    if not texts or not all(isinstance(text, str) and text.strip() for text in texts):
        raise ConfigError(f"prompts must be one text or several, none of them empty. Got {show(prompts)}.")
    for name, value, least in (("per_prompt", per_prompt, 1), ("batch", batch, 1), ("seed", seed, 0)):
        _require_whole(name, value, least)
    if steps is not None:
        _require_whole("steps", steps, 1)
    if guidance_scale is not None and not guidance_scale >= 1:
        raise ConfigError(f"guidance_scale must be >= 1, where 1 is none. Got {show(guidance_scale)}. Raise it.")
    run, model = run_or_model(str(source.path if isinstance(source, Run) else source))
    require_choice(Choice(step, best, newest), run, "a run")
    request = GenerateRequest(
        model=model,
        run=run,
        step=step,
        best=best,
        newest=newest,
        family=family,
        per_prompt=per_prompt,
        seed=seed,
        steps=steps,
        guidance_scale=guidance_scale,
        device=device,
        dtype=dtype,
        variant=variant,
        height=height,
        width=width,
        frames=frames,
        batch=batch,
    )
    asked = asked_prompts(texts, None if image is None else str(image), "image")
    return [pil_or_frames(sample) for _, _, sample in draw(request, asked, open_drawing(request))]


def score(
    images: Sequence[Any],
    prompts: str | Sequence[str] | None = None,
    rewards: str | Scorer | Sequence[str | Scorer] = (),
    *,
    metadata: Sequence[Mapping[str, Any]] = (),
    fps: float | None = None,
    device: str = "auto",
    sources: Sequence[Any] = (),
) -> list[dict[str, Any]]:
    """Score images or videos with one or several rewards, without training.

    Args:
        images: paths, PIL images, uint8 arrays (H, W, 3) or tensors (3, H, W); of videos with the frames in front.
        prompts: one for all, or one for each; None where no reward looks at them.
        rewards: names, as `diffrl rewards list` shows them, "module:Object" or "LABEL=NAME"; or scorers of your own.
        metadata: of each image what a reward may need beside the prompt, or none.
        fps: frames per second of videos that do not say it themselves.
        device: where rewards with weights run: auto, cpu, cuda or cuda:1.
        sources: the images that these are edits of, one for each, for rewards that look at them.

    Returns:
        A row for each image, in their order, that `pandas.DataFrame` takes: `prompt`; each reward by its label, in the
        reward's own units, and its parts as "label/part", NaN where it failed; and `error`, why, or None. A file that
        cannot be read fails alone.

    Raises:
        DiffrlError: no such reward, no image that can be read, or a reward cannot work on what it is given.
    """
    listed = [rewards] if isinstance(rewards, str) or callable(rewards) else list(rewards)
    if isinstance(images, (str, Path)) or not isinstance(images, Sequence):
        raise ConfigError(f"images must be a list of images. Got {show(images)}. Put it in brackets.")
    try:
        scorers = _scorers(listed, device)
        blind = [label for label, scorer in scorers.items() if scorer.spec.uses_prompt]
        if prompts is None and blind:
            raise ConfigError(
                f"prompts must be given for the reward {', '.join(blind)}, which looks at them. Got none."
            )
        texts = [prompts or ""] * len(images) if prompts is None or isinstance(prompts, str) else list(prompts)
        outputs = {
            label: score_media(one, images, texts, metadata, fps=fps, sources=sources) for label, one in scorers.items()
        }
    except RewardError as error:
        raise DiffrlError(str(error)) from error
    rows = []
    for row, text in enumerate(texts):
        values: dict[str, Any] = {"prompt": None if prompts is None else text}
        for label, output in outputs.items():
            values[label] = float(output.raw[row])
            values |= {f"{label}/{part}": float(column[row]) for part, column in output.parts.items()}
        errors = [f"{label}: {why}" for label, output in outputs.items() if (why := output.errors[row])]
        rows.append({**values, "error": "; ".join(errors) or None})
    return rows


def _console(quiet: bool) -> Console:
    """Return the program's output; that it cannot be written is no reason to end a run."""
    return Console(file=lasting(sys.stdout), quiet=quiet)


def _scorers(rewards: Sequence[str | Scorer], device: str) -> dict[str, Scorer]:
    """Return scorers by their labels: named ones as the command line makes them, a caller's own as they are."""
    if not rewards:
        raise ConfigError('rewards must name at least one reward, such as ["shapes"]. Got none. Name one.')
    loaded = iter(load(choose(named, ()), device) if (named := [r for r in rewards if isinstance(r, str)]) else ())
    scorers: dict[str, Scorer] = {}
    for reward in rewards:
        if isinstance(reward, str):
            one = next(loaded)
            label, scorer = one.label, one.scorer
        else:
            label, scorer = reward.spec.name, reward
        if label in scorers:
            raise ConfigError(f"rewards must differ in their labels. Got {label} twice. Name one as 'other={label}'.")
        scorers[label] = scorer
    return scorers


def _require_whole(name: str, value: Any, least: int) -> None:
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} must be a whole number >= {least}. Got {show(value)}. Change it.")


@contextmanager
def _guest() -> Iterator[None]:
    """Leave a program that goes on after a run as it was.

    Raises:
        KeyboardInterrupt: for the exit that Ctrl-C is under the command line.
        DiffrlError: for what a reward raised, too.
    """
    generators = rng_state()
    try:
        yield
    except Ended as end:
        if end.code == 128 + signal.SIGINT:
            raise KeyboardInterrupt from None
        raise
    except RewardError as error:
        raise DiffrlError(str(error)) from error
    finally:
        restore_rng(*generators)
