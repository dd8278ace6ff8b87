"""Fixtures shared by all tests: a tiny SD3 pipeline with random weights, and short runs on it. Offline, on the CPU."""

from __future__ import annotations

import copy
import gc
import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ["OMP_NUM_THREADS"] = "1"  # sums round alike in all processes, and tests beside others stay fast

import pytest
from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # pytest runs in the background: what it starts inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A machine that stands still for a while is no reason to fail; a hang is seen without a deadline too.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

ROOT = Path(__file__).parent.parent
WORDS = (
    "a an two three four and small large red green blue yellow purple black orange circle square triangle circles "
    "squares triangles left right of above below"
)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Modules and tests stay to the end: to look through them for garbage takes half a second each time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    """Leave to the interpreter's end what it knows how to end."""
    gc.unfreeze()


@pytest.fixture
def threads() -> Iterator[None]:
    """A script may set how many threads torch has."""
    import torch

    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True)
def _own_attention_backend() -> Iterator[None]:
    """diffusers keeps the attention backend for the whole process: a test that chose one leaves none to the next."""
    yield
    if dispatch := sys.modules.get("diffusers.models.attention_dispatch"):
        dispatch._AttentionBackendRegistry.set_active_backend(dispatch.AttentionBackendName.NATIVE)


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What plans count, and what scorers give, is kept for the session, and nothing of the user's is looked at."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_disks() -> Iterator[None]:
    """No test takes the power away: a file is written when the system has it."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(scope="session")
def read_once() -> Iterator[Callable[[Path], Path]]:
    """Folders of pipelines that no test changes: they are read from disk once, and every further load is a copy."""
    from diffusers import DiffusionPipeline

    from diffrl.models import networks

    folders, loaded, read = set[str](), dict[Any, Any](), DiffusionPipeline.__dict__["from_pretrained"]
    parts, read_parts = dict[Any, Any](), networks.load_networks

    def from_pretrained(cls: type, path: Any, **options: Any) -> Any:
        if str(path) not in folders:
            return read.__func__(cls, path, **options)
        kept = [options[name] for name in sorted(options) if options[name] is not parts.get(id(options[name]))]
        key = (cls, str(path), *sorted(options), repr(kept))
        if key not in loaded:
            loaded[key] = read.__func__(cls, path, **options)
        return copy.deepcopy(loaded[key])

    def load_networks(folder: Path, *arguments: Any) -> Any:
        if str(folder) not in folders:
            return read_parts(folder, *arguments)
        key = (str(folder), *map(str, arguments))
        if key not in loaded:
            loaded[key] = read_parts(folder, *arguments)
            parts.update({id(part): part for part in loaded[key].values()})
        return loaded[key]

    def remember(folder: Path) -> Path:
        folders.add(str(folder))
        return folder

    DiffusionPipeline.from_pretrained = classmethod(from_pretrained)
    networks.load_networks = load_networks
    yield remember
    DiffusionPipeline.from_pretrained, networks.load_networks = read, read_parts


@pytest.fixture(scope="session")
def random_pipelines(
    tmp_path_factory: pytest.TempPathFactory, read_once: Callable[[Path], Path]
) -> Callable[[str], Path]:
    """The folder of a family's tiny random pipeline, saved in diffusers format when it is first asked for."""
    from diffrl.models.tiny import build_pipeline, save_pipeline

    @cache
    def folder(family: str) -> Path:
        directory = tmp_path_factory.mktemp("pipelines") / f"random-{family}"
        pipeline = build_pipeline(family, WORDS.split(), seed=0)
        if family == "sd3":  # half of its blocks do as well
            pipeline.transformer = fewer_blocks(pipeline.transformer)
        save_pipeline(pipeline, directory)
        return read_once(directory)

    return folder


def fewer_blocks(transformer: Any) -> Any:
    """A network of two blocks, in all else like this one; its weights are random."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return type(transformer).from_config(transformer.config, num_layers=2)


@pytest.fixture(scope="session")
def random_sd3(random_pipelines: Callable[[str], Path]) -> Path:
    """A tiny random StableDiffusion3Pipeline, saved in diffusers format."""
    return random_pipelines("sd3")


@pytest.fixture
def run_settings(random_sd3: Path, tmp_path: Path) -> dict[str, Any]:
    """A configuration small enough to train in seconds, as a plain mapping that a test may change."""
    return {
        "run": {
            "name": "run",
            "dir": str(tmp_path / "runs"),
            "seed": 3,
            "iterations": 3,
            "checkpoint_every": 1,
            "eval_every": 2,
        },
        "model": {"family": "sd3", "path": str(random_sd3)},
        "prompts": {"train": "shapes:train", "eval": "shapes:tune", "per_iteration": 2},
        "rollout": {
            "steps": 5,
            "dynamics": {"kind": "flow_sde", "noise_level": 0.7},
            "stochastic": {"kind": "window", "start": 0, "size": 3},
            "tree": {"roots": 4},
        },
        "rewards": [{"name": "shapes"}],
        "train": {"learning_rate": 1.0e-4, "updates_per_iteration": 2, "micro_batch": 8},
        "eval": {"rewards": [{"name": "shapes_strict"}, {"name": "shapes"}], "samples": 7, "steps": 3},
        "track": {"pictures_per_iteration": 2, "pictures_per_evaluation": 4},
    }


@pytest.hookimpl(wrapper=True)
def pytest_pyfunc_call() -> Iterator[None]:
    """Skip what asks for a real int8 product where this CPU has none, and the refusal says so."""
    from diffrl.errors import NotHereError

    try:
        return (yield)
    except NotHereError as error:
        if "lacks VNNI" not in str(error):
            raise
        pytest.skip(str(error))
