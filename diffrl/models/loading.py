"""From a family name and a path to a `ModelAdapter`, with the mistakes people make answered in one sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from diffrl.errors import ConfigError
from diffrl.models.adapter import ModelAdapter
from diffrl.models.families import FAMILIES, Family, find_family, require_pipeline
from diffrl.models.files import read_object
from diffrl.models.pipeline import Placement, pipeline_class_of
from diffrl.models.shipped import SETTINGS_FILE, shipped_settings
from diffrl.models.vetting import vet_pipeline
from diffrl.registry import resolve
from reward_models.messages import cut, quote, show

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def choose_device(name: str) -> torch.device:
    """The device that `auto`, `cpu` or `cuda` means on this machine.

    Raises:
        ConfigError: CUDA was asked for by name and there is none.
    """
    if name not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"A device is auto, cpu or cuda. Got {name!r}.")
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise ConfigError("The device cuda needs a CUDA device. None was found. Use auto or cpu.")
    return torch.device(name)


def check_pipeline_directory(family: Family, path: str) -> None:
    """Refuse a local path that is no diffusers directory of one of the family's pipeline classes; hub ids pass.

    Raises:
        ConfigError: says what was found instead.
    """
    directory = Path(path)
    if not directory.exists():
        if is_hub_id(path) and not (directory.parent.is_dir() and directory.parent != Path()):
            return
        raise ConfigError(
            f"model.path must be a diffusers directory or a hub id. Got {quote(path, 200)}, which does not "
            "exist here. Check the spelling."
        )
    index = directory / "model_index.json"
    if not index.is_file():
        raise ConfigError(
            f"model.path must be a diffusers directory. Got {path!r}, which has no model_index.json. "
            "Point it at the folder that pipeline.save_pretrained wrote."
        )
    require_pipeline(family, pipeline_class_of(path), path)
    vet_pipeline(directory)


def is_hub_id(path: str) -> bool:
    """Whether a path has the form of a model on the hub, OWNER/NAME."""
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(path)
    except HFValidationError:
        return False
    return path.count("/") == 1


def infer_family(path: str) -> str:
    """The family whose adapter loads this pipeline.

    Raises:
        ConfigError: the path cannot be read, or no family of this version loads it.
    """
    try:
        found = pipeline_class_of(path)
    except (OSError, ValueError, AttributeError) as error:
        check_pipeline_directory(FAMILIES["sd3"], path)  # says so if it is no folder of a pipeline
        raise ConfigError(loading_problem(path, error)) from error
    for family in FAMILIES.values():
        if found in family.pipelines:
            return family.name
    known = "; ".join(f"{family.name}: {', '.join(family.pipelines)}" for family in FAMILIES.values())
    raise ConfigError(
        f"{path!r} must be a pipeline that a family of this version loads ({known}). Got a {found}. "
        "docs/add-a-model.md tells how to add a family."
    )


def load_adapter(
    family: str,
    path: str,
    *,
    dtype: str,
    device: torch.device | None = None,
    placement: Placement | None = None,
    **options: Any,
) -> ModelAdapter:
    """Load a pipeline's components as an adapter of its family.

    Args:
        family: registered family name or "module:Adapter".
        path: diffusers directory or hub id.
        dtype: name of the compute dtype, a key of `DTYPES`.
        device: where the components live, if no placement says it.
        placement: where they live and how they are run.
        **options: passed to the adapter (height, width, max_sequence_length, revision, ...); None leaves the choice to
            the pipeline's own `SETTINGS_FILE`, then to the adapter.

    Raises:
        ConfigError: wrong class, missing or unreadable files, an id that cannot be fetched.
    """
    facts = find_family(family)
    adapter_class = resolve("model.family", {facts.name: facts.adapter}, family)
    check_pipeline_directory(facts, path)
    placement = placement or Placement(device=device or torch.device("cpu"))
    given = {name: value for name, value in options.items() if value is not None}
    shipped = shipped_settings(Path(path))
    known = adapter_class.options()
    if unknown := sorted(shipped.keys() - set(known)):
        raise ConfigError(
            f"{Path(path) / SETTINGS_FILE} may hold options of the adapter: {', '.join(known)}. Got "
            f"{show(unknown)}. Remove them."
        )
    options = {**shipped, **given}
    try:
        adapter: ModelAdapter = adapter_class.from_pretrained(path, dtype=DTYPES[dtype], placement=placement, **options)
    except ConfigError:
        raise
    except Exception as error:  # what libraries raise for somebody's damaged files has no common class
        if isinstance(error, MemoryError) or "out of memory" in str(error).lower() or "can't allocate" in str(error):
            raise
        raise ConfigError(loading_problem(path, error)) from error
    _require_falling(adapter, path)
    return adapter


def _require_falling(adapter: ModelAdapter, path: str) -> None:
    """Refuse a scheduler whose noise levels do not fall: steps without length have no density."""
    sigmas = adapter.sigmas(4)
    if not bool(torch.isfinite(sigmas).all() and (sigmas.diff() < 0).all() and sigmas[-1] >= 0):
        raise ConfigError(
            f"The scheduler of {path!r} must give noise levels that fall from 1 to 0. Got {show(sigmas.tolist())}. "
            "Mend scheduler/scheduler_config.json, such as its shift."
        )


def refuse_distilled(family: Family, path: str, allowed: bool) -> None:
    """Refuse to train a checkpoint that was distilled to few steps, unless it is asked for.

    Its velocity is no longer that of a probability flow: stochastic steps add the wrong noise, densities and ratios
    lose their meaning, and a regression at random noise levels (nft) undoes the distillation.

    Raises:
        ConfigError: says what gave it away.
    """
    sign = distilled_sign(family, path)
    if sign is None or allowed:
        return
    raise ConfigError(
        "model.path must be a checkpoint that was not distilled to few steps: grpo's stochastic steps and nft both "
        f"need the velocity of a flow. Got {path!r}, {sign}. Train its base model, or set model.allow_distilled: true "
        "if you know better."
    )


def distilled_sign(family: Family, path: str) -> str | None:
    """What shows that a checkpoint was distilled: its name, or what its files say; None if nothing does."""
    name = path.rstrip("/").rpartition("/")[2].lower()
    word = next((word for word in family.distilled if word in name), None)
    if word is not None:
        return f"whose name says {word!r}"
    for file, key, value in (
        ("transformer/config.json", "guidance_embeds", False),
        ("model_index.json", "is_distilled", True),
    ):
        if file.startswith("transformer") and family.guidance != "embedded":
            continue
        if read_object(Path(path) / file, missing={}).get(key) is value:
            return f"whose {file} has {key}: {str(value).lower()}"
    return None


def _chain(error: BaseException) -> list[BaseException]:
    """An error and those that it was raised for: diffusers words the hub's errors anew."""
    found: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in found:
        found.append(cause)
        cause = cause.__cause__ or cause.__context__
    return found


def loading_problem(path: str, error: Exception) -> str:
    """What went wrong with a pipeline, in one sentence, and the way out."""
    names = {kind.__name__ for cause in _chain(error) for kind in type(cause).__mro__}
    if "GatedRepoError" in names:
        terms = f"Accept its terms at https://huggingface.co/{path}, then run `hf auth login`."
        return f"model.path {path!r} is gated. {terms}"
    if "RevisionNotFoundError" in names:
        return f"model.revision is no branch, tag or commit of {path!r}. Look at https://huggingface.co/{path}."
    if "RepositoryNotFoundError" in names:
        return (
            f"model.path {path!r} is no model on the hub that this account can see. Check the spelling; for a private "
            "one run `hf auth login`."
        )
    text = str(error).strip()
    if {"OfflineModeIsEnabled", "LocalEntryNotFoundError"} & names:
        return (
            f"model.path {path!r} is neither a folder here nor in the hub's cache, and the hub cannot be reached. "
            f"Fetch it with `hf download {path}` where there is a network, or give a folder."
        )
    if shapes := re.search(r"because (\S+) expected shape \S*?\((.*?)\)+, but got \S*?\((.*?)\)", text):
        name, expected, got = shapes.groups()
        return (
            f"model.path {path!r} could not be loaded: {name} must have shape ({expected.strip('[]')}) by its "
            f"config.json. Got ({got.strip('[]')}). Save or download it again."
        )
    reason = text.splitlines()[0] if text else type(error).__name__
    return f"model.path {path!r} could not be loaded: {cut(reason.rstrip('.'), 500)}. Check it, or save it again."
