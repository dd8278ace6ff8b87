"""What a checkpoint holds besides weights: an optimiser's state and the random generators', as tensors and JSON."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from diffrl.checkpoint.files import require_json
from diffrl.distributed.sharding import dtype_of, read_like, shape_of
from diffrl.errors import CheckpointError


def optimizer_tensors(optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return an optimizer's state as named tensors and JSON. The tensors are the optimizer's own, not copies."""
    tensors: dict[str, Tensor] = {}
    state = _flatten(optimizer.state_dict(), "", tensors)
    return tensors, {"signature": _signature(optimizer), "state": state}


def restore_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], json_state: Mapping[str, Any]
) -> None:
    """Give back, bit for bit, the state that `optimizer_tensors` took; `tensors` are copied.

    CheckpointError where the state is of another kind of optimizer or of other parameters.
    """
    _require_signature(optimizer, json_state["signature"])
    state = _unflatten(json_state["state"], _LikeWeights(tensors, optimizer))
    optimizer.load_state_dict(state)
    _undo_casts(optimizer, state)


def require_optimizer(
    optimizer: torch.optim.Optimizer, tensors: Mapping[str, Tensor], json_state: Mapping[str, Any]
) -> None:
    """Refuse what `restore_optimizer` could not take, or would take wrongly; of the tensors only headers are read.

    CheckpointError says what is missing, of another form, or of another dtype or shape than its parameter.
    """
    try:
        _require_signature(optimizer, json_state["signature"])
        saved, current = _unflatten(json_state["state"], _Headers(tensors)), optimizer.state_dict()
        for group, expected in zip(saved["param_groups"], current["param_groups"], strict=True):
            if group.keys() != expected.keys() or group["params"] != expected["params"]:
                raise ValueError("its groups are not those of this optimizer")
            for name in expected:
                if isinstance(expected[name], (bool, float)) and not isinstance(group[name], (bool, int, float)):
                    raise ValueError(f"{name!r} is {group[name]!r}")
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        for index, entry in saved["state"].items():
            if type(optimizer) is torch.optim.AdamW:  # of others, only that it can be read
                _require_moments(entry, parameters[index])
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, RecursionError) as error:
        what = f"{error} is missing" if isinstance(error, KeyError) else f"{error}"
        raise CheckpointError(f"Its optimizer state cannot be used: {what}.") from error


def _require_moments(entry: Mapping[str, Any], parameter: Tensor) -> None:
    if entry["step"].ndim or not entry["step"].is_floating_point():
        raise ValueError(f"a step is a {entry['step'].dtype} of shape {tuple(entry['step'].shape)}")
    for name in ("exp_avg", "exp_avg_sq"):
        if (entry[name].shape, entry[name].dtype) != (parameter.shape, parameter.dtype):
            raise ValueError(
                f"{name!r} is {entry[name].dtype} of shape {tuple(entry[name].shape)}, its parameter "
                f"{parameter.dtype} of shape {tuple(parameter.shape)}"
            )


def _require_signature(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    here = _signature(optimizer)
    for name in {**saved, **here}:
        was, now = saved.get(name, "absent"), here.get(name, "absent")
        if was != now:
            problem = f"The checkpoint's optimizer state is of another run: {name} is {was} there and {now} here."
            raise CheckpointError(f"{problem} Resume with the model and optimizer settings it was saved with.")


def seed_rng(seed: int) -> None:
    """Seed the global generators. Nothing in diffrl draws from them, but a user's scorer may."""
    random.seed(seed)
    np.random.seed(seed % 2**32)
    torch.manual_seed(seed)


def rng_state() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the global generators: python, numpy, torch CPU and, if there is one, this process's CUDA device."""
    tensors: dict[str, Tensor] = {}
    numpy_state = np.random.get_state(legacy=False)
    numpy_state["state"]["key"] = numpy_state["state"]["key"].tolist()
    states = {"python": random.getstate(), "numpy": numpy_state, "torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        states["cuda"] = torch.cuda.get_rng_state()
    return tensors, _flatten(states, "", tensors)


def restore_rng(tensors: Mapping[str, Tensor], json_state: Mapping[str, Any]) -> None:
    """Set the global generators to what `rng_state` took; a CUDA state is left out where there is no CUDA."""
    states = _unflatten(json_state, tensors)
    states["numpy"]["state"]["key"] = np.array(states["numpy"]["state"]["key"], dtype=np.uint32)
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    torch.set_rng_state(states["torch"])
    if "cuda" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states["cuda"])


def require_rng(tensors: Mapping[str, Tensor], json_state: Mapping[str, Any]) -> None:
    """Refuse what `restore_rng` could not take: tried on generators of its own. CheckpointError says why."""
    try:
        states = _unflatten(json_state, tensors)
        random.Random().setstate(states["python"])
        states["numpy"]["state"]["key"] = np.array(states["numpy"]["state"]["key"], dtype=np.uint32)
        np.random.RandomState().set_state(states["numpy"])
        torch.Generator().set_state(states["torch"])
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError, RuntimeError) as error:
        problem = " ".join(str(error).split())
        raise CheckpointError(f"Its random generators' state cannot be used: {problem}.") from error


class _Headers(Mapping[str, Tensor]):
    """Stand-ins for saved tensors, of their shape and dtype and without content."""

    def __init__(self, tensors: Mapping[str, Tensor]):
        self._tensors = tensors

    def __getitem__(self, name: str) -> Tensor:
        dtype = getattr(torch, dtype_of(self._tensors, name).removeprefix("torch."))
        return torch.empty(shape_of(self._tensors, name), dtype=dtype, device="meta")

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


class _LikeWeights(Mapping[str, Tensor]):
    """An optimizer's saved tensors; what has the shape of its sharded weight is read as this rank's part of it."""

    def __init__(self, tensors: Mapping[str, Tensor], optimizer: torch.optim.Optimizer):
        self._tensors = tensors
        self._weights = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def __getitem__(self, name: str) -> Tensor:
        kind, index, *_ = name.split(".")  # as `_flatten` names an entry of state_dict()["state"]
        return read_like(self._tensors, name, self._weights[int(index)] if kind == "state" else None)

    def __contains__(self, name: object) -> bool:
        return name in self._tensors  # the mapping's own would read it

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __len__(self) -> int:
        return len(self._tensors)


def _signature(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Return what a state must fit: the kind of optimizer, and each parameter's shape."""
    signature: dict[str, Any] = {"the kind": type(optimizer).__name__}
    for g, group in enumerate(optimizer.param_groups):
        signature |= {f"the shape of parameter {p} of group {g}": list(x.shape) for p, x in enumerate(group["params"])}
    return signature


def _undo_casts(optimizer: torch.optim.Optimizer, state: Mapping[str, Any]) -> None:
    """Put back what `load_state_dict` changed: it casts moments to their parameter's dtype and garbles strings.

    `state_dict` may arrange what the optimizer holds in another way (bitsandbytes does), but its leaves are the same
    objects: each is put back where it is held.
    """
    loaded = optimizer.state_dict()["state"]  # as `state["state"]` is arranged
    saved: dict[int, Any] = {}
    tree_map(lambda value, cast: saved.setdefault(id(cast), _placed_like(value, cast)), state["state"], loaded)
    for parameter, entry in optimizer.state.items():
        optimizer.state[parameter] = tree_map(lambda cast: saved.get(id(cast), cast), entry)


def _placed_like(value: Any, loaded: Any) -> Any:
    """Return `value`; a tensor on the device that `load_state_dict` chose."""
    return value.to(loaded.device) if isinstance(value, Tensor) else value


def _flatten(value: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return JSON of nested values; tensors go to `tensors`, what JSON has not becomes {"$kind": x}."""
    if isinstance(value, Tensor):
        if name in tensors:
            raise CheckpointError(f"Two tensors of the state are named {name!r}.")
        tensors[name] = value
        return {"$tensor": name}
    if isinstance(value, dict):
        flat = {key: _flatten(entry, f"{name}.{key}".lstrip("."), tensors) for key, entry in value.items()}
        return flat if all(isinstance(key, str) and key[:1] != "$" for key in flat) else {"$items": list(flat.items())}
    if isinstance(value, (list, tuple)):
        entries = [_flatten(entry, f"{name}.{i}".lstrip("."), tensors) for i, entry in enumerate(value)]
        return entries if isinstance(value, list) else {"$tuple": entries}
    require_json(value, name)
    return value


def _unflatten(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Return what `_flatten` took apart; tensors are copies."""
    match value:
        case list():
            return [_unflatten(entry, tensors) for entry in value]
        case {"$tensor": name} if name not in tensors:
            raise CheckpointError(f"The checkpoint lacks the tensor {name!r}.")
        case {"$tensor": name}:
            return tensors[name].clone()
        case {"$tuple": entries}:
            return tuple(_unflatten(entries, tensors))
        case {"$items": items}:
            return {key: _unflatten(entry, tensors) for key, entry in items}
        case dict():
            return {key: _unflatten(entry, tensors) for key, entry in value.items()}
    return value
