"""What scorers with weights share: dtypes, a quiet place to compute in, and strict loading of published files."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from reward_models.common.errors import RewardError

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
PICKLES = (".bin", ".ckpt", ".pt", ".pth", ".pkl")
WEIGHTS = (".pt", ".pth", ".bin", ".safetensors")
"""How files of weights end."""


Copies = dict[tuple[Hashable, ...], Any]
_HELD: ContextVar[tuple[Copies, str] | None] = ContextVar("held", default=None)


@contextmanager
def one_copy(copies: Copies, device: torch.device | str) -> Iterator[None]:
    """Let scorers made for `device` within the block share the weights that they have in common; see `shared`.

    Args:
        copies: what was loaded so far, and what will be; give the same one for all scorers that may share.
        device: where the scorers will be moved. Nothing is shared between devices.
    """
    token = _HELD.set((copies, str(device)))
    try:
        yield
    finally:
        _HELD.reset(token)


def shared(key: tuple[Hashable, ...], make: Callable[[], Any]) -> Any:
    """Return what `make` makes, or within `one_copy` what it made for an equal key and device. Read-only.

    Args:
        key: everything that decides what is made.
        make: loads it.
    """
    held = _HELD.get()
    if held is None:
        return make()
    copies, device = held
    if (device, *key) not in copies:
        copies[device, *key] = make()
    return copies[device, *key]


def dtype_of(name: str) -> torch.dtype:
    """Return the dtype that a scorer's `dtype` option names."""
    if name not in DTYPES:
        raise RewardError(f"dtype must be one of {', '.join(DTYPES)}. Got {name!r}.")
    return DTYPES[name]


@contextmanager
def inference(device: torch.device | str) -> Iterator[None]:
    """Compute without gradients, and without a caller's autocast, which would round scores."""
    with torch.no_grad(), torch.autocast(torch.device(device).type, enabled=False):
        yield


def require_package(module: str, extra: str, reward: str) -> None:
    """Refuse a reward whose package is not installed.

    Raises:
        RewardError: says what to install.
    """
    if importlib.util.find_spec(module) is None:
        raise RewardError(f"The reward {reward} needs the package {module}. Run: pip install 'diffrl[{extra}]'.")


def find_file(source: str | Path, filename: str, reward: str, revision: str | None = None) -> Path:
    """Return a file of weights: `place` itself, `filename` in the directory `place`, or of the hub repository `place`.

    Raises:
        RewardError: it is in none of these.
    """
    path = Path(source).expanduser()
    if path.is_file():
        return path
    if path.is_dir():
        if (path / filename).is_file():
            return path / filename
        raise RewardError(f"The reward {reward} looks for {filename} in {path}, where it is not.")
    if _is_path(source):
        raise RewardError(f"There is no file or directory {source} for the reward {reward}. Check the path.")
    from huggingface_hub import hf_hub_download

    try:
        return Path(hf_hub_download(str(source), filename, revision=revision))
    except Exception as error:  # the hub's own errors, and whatever its network layer raises
        raise RewardError(
            f"{filename} of {source} on the hub, which the reward {reward} needs, cannot be had: "
            f"{str(error).splitlines()[0]} Download it where there is a network, and give its path."
        ) from error


def pretrained(cls: Any, source: str, reward: str, **options: Any) -> Any:
    """Return `cls.from_pretrained(place)`, with one clear error, and refusing weights that are missing or in a pickle.

    Raises:
        RewardError: it cannot be loaded, its weights are no safetensors, or some of its weights would stay random.
    """
    if _is_path(source) and not Path(source).expanduser().exists():
        raise RewardError(f"There is no directory {source} for the reward {reward}. Check the path.")
    is_model = isinstance(cls, type) and issubclass(cls, nn.Module) or hasattr(cls, "from_config")
    try:
        if not is_model:
            return cls.from_pretrained(source, **options)
        _refuse_pickles(source, reward)
        model, report = cls.from_pretrained(source, output_loading_info=True, use_safetensors=True, **options)
    except RewardError:
        raise
    except Exception as error:  # transformers raises OSError, ValueError, KeyError, SafetensorError, ...
        first = (str(error).splitlines() or [repr(error)])[0]
        if not Path(source).expanduser().exists():
            raise RewardError(
                f"{source} on the hub, which the reward {reward} needs, cannot be had ({first[:120]}). Where there is "
                f"a network: hf download {source} --local-dir DIR; then give DIR in place of {source}, as the option "
                "that names it."
            ) from error
        raise RewardError(f"{source}, which the reward {reward} needs, cannot be loaded: {first}") from error
    wrong = sorted(report["missing_keys"]) + sorted(str(key) for key in report["mismatched_keys"])
    if wrong:
        raise RewardError(
            f"{source} has no weights for {', '.join(wrong[:3])}{' and others' if len(wrong) > 3 else ''}, which the "
            f"reward {reward} needs. It is another model."
        )
    return model


def _refuse_pickles(source: str, reward: str) -> None:
    """Refuse a directory whose weights only a pickle holds: opening it may run code of its maker.

    Raises:
        RewardError: names the file.
    """
    folder = Path(source).expanduser()
    pickles = sorted(file.name for file in folder.glob("*") if file.suffix in PICKLES) if folder.is_dir() else []
    if pickles and not any(folder.glob("*.safetensors")):
        raise RewardError(
            f"{source}, which the reward {reward} needs, must hold its weights as safetensors. Got {pickles[0]}, a "
            "pickle, which may run code of its maker when it is opened. Take a version with safetensors; or, if you "
            "trust its maker, load it with transformers and write it anew with save_pretrained(FOLDER)."
        )


def read_state(path: Path, reward: str) -> dict[str, Tensor]:
    """Return tensors of a safetensors or torch file, without running anything that the file says.

    Raises:
        RewardError: it cannot be read, or holds more than tensors.
    """
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return dict(load_file(path))
        content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # zip, pickle and safetensors errors have no common class
        first = (str(error).splitlines() or [repr(error)])[0]
        raise RewardError(f"{path}, the weights of the reward {reward}, cannot be read: {first}") from error
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping) or not all(isinstance(value, Tensor) for value in content.values()):
        raise RewardError(f"{path} holds no mapping of names to tensors, which the reward {reward} needs.")
    return dict(content)


def load_strict(
    module: nn.Module, state: Mapping[str, Tensor], reward: str, optional: Collection[str] = (), source: str = ""
) -> None:
    """Load weights and refuse any that are missing, left over or of another shape, but for named ones.

    Args:
        module: gets the weights.
        state: the file's tensors under the module's own names.
        reward: for the message.
        optional: names that may be missing or left over.
        source: the file, for the message.

    Raises:
        RewardError: names the first keys that do not fit.
    """
    expected = module.state_dict()
    wrong = {
        "missing": [key for key in expected if key not in state and key not in optional],
        "unknown": [key for key in state if key not in expected and key not in optional],
        "of another shape": [key for key in expected if key in state and expected[key].shape != state[key].shape],
    }
    if any(wrong.values()):
        wrong_keys = "; ".join(f"{what}: {', '.join(keys[:3])} ({len(keys)})" for what, keys in wrong.items() if keys)
        raise RewardError(
            f"The weights {source} do not fit the reward {reward}: {wrong_keys}. It is another model's file."
        )
    module.load_state_dict({key: value for key, value in state.items() if key in expected}, strict=False)


def _is_path(source: str | Path) -> bool:
    """Return whether a name can only be a path: a hub id is 'name' or 'owner/name', no file of weights."""
    text = str(source)
    if isinstance(source, Path) or text.lower().endswith(WEIGHTS):
        return True
    return text.startswith((".", "/", "~")) or text.count("/") > 1 or "\\" in text
