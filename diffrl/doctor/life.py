"""A small run as a user has it: trained, killed and resumed, exported and loaded elsewhere, on two ranks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import Tensor

from diffrl.bundled import find_recipe, pipeline_folder
from diffrl.doctor.rows import Budget, Result, Row
from diffrl.doctor.tiny import distance
from diffrl.errors import DiffrlError, NotHereError
from diffrl.models.shipped import shipped_settings
from diffrl.tracking.metrics import read_metrics

ITERATIONS = 3
LONGEST = 240.0
"""Seconds that a command may take."""
PIPELINE = "assets/tiny-sd3"
PROMPT, STEPS, NOISE = "a red circle", 4, 0
SMALL = (
    f"run.iterations={ITERATIONS}",
    "run.checkpoint_every=1",
    "run.eval_every=null",
    "run.seed=0",
    "track.trees=null",
    "prompts.per_iteration=4",
    "model.lora={rank: 4, alpha: 8}",
    "train.warmup_updates=0",
    "train.learning_rate=1.0e-2",
    "eval.samples=8",
)
DRIFT = 1e-3
"""How far weights may be apart that a GPU computed twice: it may add up gradients in any order."""


def rows(device: torch.device, budget: Budget) -> Iterator[Row]:
    """Yield each row needs the ones before it."""
    with TemporaryDirectory() as name:
        life = _Life(device, Path(name))
        same = "equal bit by bit" if device.type == "cpu" else f"within {DRIFT:g}"
        yield Row("train", "three iterations; ratio within 1e-3 of 1 before the first update", life.train)
        yield Row("kill and resume", f"weights {same} to those of a run without interruption", life.resume)
        yield Row("export", "diffusers draws with the LoRA what diffrl draws, within 1 of 255", life.export)
        yield Row("two ranks", f"weights within {DRIFT:g} of one rank's", life.two_ranks)


class _Life:
    """The runs of this section."""

    def __init__(self, device: torch.device, folder: Path):
        self.device, self.folder = device, folder

    def train(self) -> Result:
        """Train a whole run."""
        self._finish(self._start("whole"))
        error = read_metrics(self.folder / "whole/metrics.jsonl")[-ITERATIONS]["update/on_policy_error"]
        return Result(error <= 1e-3, f"ratio within {error:.1e} of 1", {"on_policy_error": error})

    def resume(self) -> Result:
        """Kill another one once its first checkpoint is there, and resume it."""
        process = self._start("killed")
        first, end = self.folder / "killed/checkpoints/step-000001", time.monotonic() + LONGEST
        while not first.is_dir() and process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        kept = sorted(one.name for one in first.parent.glob("step-*"))
        self._finish(self._command("train", "--resume", str(self.folder / "killed")))
        apart = distance(*(list(_weights(self.folder / name).values()) for name in ("killed", "whole")))
        message = f"killed with {', '.join(kept)}; weights {apart:.1e} apart"
        return Result(apart <= (0.0 if self.device.type == "cpu" else DRIFT), message, {"weights": apart})

    def export(self) -> Result:
        """Sample with the whole run's LoRA in the stock pipeline, from the same noise."""
        out = self.folder / "exported"
        self._finish(self._command("export", str(self.folder / "whole"), "--newest", "--out", str(out)))
        ours, base = (self._ours(run) for run in (self.folder / "whole", None))
        stock = self._stock(out)
        apart, moved = float((stock - ours).abs().max()), float((ours - base).abs().mean())
        message = f"{apart:.0f} of 255 apart at most; the run moved the image by {moved:.2f} on average"
        return Result(apart <= 1 and moved > 0, message, {"levels": apart, "moved": moved})

    def two_ranks(self) -> Result:
        """Train the whole run on two processes."""
        if self.device.type == "cuda" and torch.cuda.device_count() < 2:
            raise NotHereError("it needs two GPUs")
        launch = ["accelerate.commands.launch", "--multi_gpu", "--num_processes", "2", "-m", "diffrl.cli"]
        self._finish(self._start("two", launch))
        apart = distance(*(list(_weights(self.folder / name).values()) for name in ("two", "whole")))
        return Result(apart <= DRIFT, f"weights {apart:.1e} apart", {"weights": apart})

    def _start(self, name: str, module: Sequence[str] = ("diffrl.cli",)) -> subprocess.Popen[str]:
        overrides = (f"run.dir={self.folder}", f"run.name={name}", f"model.device={self.device.type}")
        return self._command("train", str(find_recipe("quickstart")[1]), *SMALL, *overrides, module=module)

    def _command(self, *arguments: str, module: Sequence[str] = ("diffrl.cli",)) -> subprocess.Popen[str]:
        environment = {**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())}
        return subprocess.Popen(
            [sys.executable, "-m", *module, *arguments],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
        )

    def _finish(self, process: subprocess.Popen[str]) -> None:
        """Wait for a command.

        Raises:
            DiffrlError: it failed, or took too long.
        """
        try:
            output, _ = process.communicate(timeout=LONGEST)
        except subprocess.TimeoutExpired as error:
            process.kill()
            process.communicate()
            raise DiffrlError(f"a command took longer than {LONGEST:.0f} s") from error
        if process.returncode:
            lines = [line for line in output.splitlines() if line.strip()] or ["it said nothing"]
            raise DiffrlError(f"a command ended with {process.returncode}: {lines[-1]}")

    def _ours(self, run: Path | None) -> Tensor:
        """Return an image by diffrl, (1, 3, H, W) of 0 to 255: aligned by a run, or not."""
        from diffrl.models.loading import load_adapter
        from diffrl.run.checkpoints import NEWEST, load_aligned

        adapter: Any
        if run is None:
            adapter = load_adapter("sd3", PIPELINE, dtype="float32", device=self.device)
        else:
            adapter = load_aligned(run, self.device, NEWEST).adapter
        encoded, x = adapter.encode_prompts([PROMPT]), adapter.init_latents(self._noise)
        sigmas = adapter.sigmas(STEPS).to(self.device)
        with torch.no_grad():
            for now, after in zip(sigmas, sigmas[1:], strict=False):
                x = x + (after - now) * adapter.velocity(x, now.expand(1), encoded, 1.0)
            return adapter.decode(x).float().cpu()  # type: ignore[no-any-return]

    def _stock(self, lora: Path) -> Tensor:
        """Return the same by diffusers."""
        from diffusers import StableDiffusion3Pipeline

        pipeline: Any = StableDiffusion3Pipeline.from_pretrained(pipeline_folder(PIPELINE)).to(self.device)
        pipeline.set_progress_bar_config(disable=True)
        pipeline.load_lora_weights(lora)
        height = pipeline.transformer.config.sample_size
        latents = self._noise((pipeline.transformer.config.in_channels, height, height))
        options = shipped_settings(pipeline_folder(PIPELINE))
        made = pipeline(
            PROMPT, guidance_scale=1.0, num_inference_steps=STEPS, latents=latents, output_type="pt", **options
        )
        return (made.images.float().cpu() * 255).round()  # type: ignore[no-any-return]

    def _noise(self, shape: Sequence[int]) -> Tensor:
        return torch.randn((1, *shape), generator=torch.Generator().manual_seed(NOISE)).to(self.device)


def _weights(run: Path) -> Mapping[str, Tensor]:
    """Return the policy after a run's last iteration, by name."""
    from safetensors.torch import load_file

    weights = load_file(run / f"checkpoints/step-{ITERATIONS:06d}/policy.safetensors")
    return dict(sorted(weights.items()))
