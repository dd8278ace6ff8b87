"""Weights split over the ranks by torch's FSDP2, and how single tensors are read from and written to them.

Every rank holds an equal part of the rows of each weight, and of its gradient, optimiser state and averages. A block's
whole weights exist while it runs and are freed after it. Weights keep their own dtype on the way: a gathered network
computes what the same network computes unsharded.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from diffrl.distributed.gathered import is_sharded, whole
from diffrl.distributed.ranks import Ranks
from diffrl.errors import ConfigError


@runtime_checkable
class Rows(Protocol):
    """Named tensors that can be read in part, as a checkpoint's are."""

    def shape(self, name: str) -> tuple[int, ...]:
        """Return the shape of the whole tensor."""
        ...

    def dtype(self, name: str) -> str:
        """Return the dtype as torch writes it."""
        ...

    def rows(self, name: str, start: int, stop: int) -> Tensor:
        """Return a whole tensor's rows from `start` to before `stop`."""
        ...


def make_mesh(ranks: Ranks) -> Any:
    """Return all ranks in one row."""
    from torch.distributed.device_mesh import init_device_mesh

    return init_device_mesh(ranks.device.type, (ranks.world,))


def roots(network: nn.Module) -> list[nn.Module]:
    """Return the outermost modules that name their blocks as diffusers' models do; mostly the network itself."""
    outermost: list[nn.Module] = []
    for module in network.modules():
        if getattr(module, "_no_split_modules", None) and not any(
            module in set(other.modules()) for other in outermost
        ):
            outermost.append(module)
    return outermost


def blocks(root: nn.Module) -> list[nn.Module]:
    """Return the repeated blocks of a root: members of its module lists, of the classes that it names."""
    names = set(getattr(root, "_no_split_modules", None) or ())
    lists = [module for module in root.modules() if isinstance(module, nn.ModuleList)]
    return [block for listed in lists for block in listed if type(block).__name__ in names]


def shard_network(network: nn.Module, mesh: Any, widen: bool) -> list[nn.Module]:
    """Split a network's weights over a mesh, in place; each block is a group that is gathered at once.

    Args:
        network: on the mesh's device; the same weights on every rank.
        mesh: one-dimensional.
        widen: first turn the weights into float32, one block at a time, so that a rank never holds all of them.

    Returns:
        Its roots: what is called as a whole.

    Raises:
        ConfigError: the network has no blocks that could be told apart, is more than one, quantised or compiled.
    """
    from torch.distributed.fsdp import fully_shard

    outermost = roots(network)
    if problem := _problem(network, outermost):
        raise ConfigError(f"train.sharding: fsdp {problem} Or use train.sharding: none.")
    # Kept casts of every weight, which autocast makes for the length of a call, would undo the sharding.
    torch.set_autocast_cache_enabled(False)
    for root in outermost:
        for module in (*blocks(root), root):
            if widen:
                _widen(module)
            # The root too is freed after its forward pass: weights that change in between must be gathered anew.
            fully_shard(module, mesh=mesh, reshard_after_forward=True)
    return outermost


def _problem(network: nn.Module, outermost: list[nn.Module]) -> str | None:
    """Return why a network cannot be split; None if it can be."""
    name = type(network).__name__
    inside = {id(parameter) for root in outermost for parameter in root.parameters()}
    if not all(blocks(root) for root in outermost) or {id(parameter) for parameter in network.parameters()} - inside:
        return f"needs a transformer that names its blocks (_no_split_modules). Got {name}, which does not."
    if len(outermost) > 1:  # ranks could need different ones in the same pass of an update
        return f"needs a model with one transformer. Got {len(outermost)} in {name}. Train a LoRA."
    if any(not p.is_floating_point() or type(p.data) is not Tensor for p in network.parameters()):
        return "needs weights that are not quantised. Set model.base_precision: null."
    if any(getattr(module, "_compiled_call_impl", None) is not None for module in network.modules()):
        return "has not been made to work with torch.compile. Set model.compile: false."
    return None


def _widen(module: nn.Module) -> None:
    """Turn the weights that are not sharded yet into float32."""
    for parameter in module.parameters():
        if not is_sharded(parameter):
            parameter.data = parameter.data.to(torch.float32)
    for buffer in module.buffers():
        if buffer.is_floating_point():
            buffer.data = buffer.data.to(torch.float32)


def own_rows(tensor: Tensor) -> tuple[Tensor, int]:
    """Return this rank's rows of a tensor, sharing its storage, and the first one's number; of a plain one, all."""
    if not is_sharded(tensor):
        return tensor, 0
    mesh, (placement,) = tensor.device_mesh, tensor.placements
    assert placement.is_shard(0)
    local = tensor.to_local()
    each = -(-tensor.shape[0] // mesh.size())  # as torch.chunk deals them out
    start = min(each * mesh.get_local_rank(), tensor.shape[0])
    assert len(local) == min(each, tensor.shape[0] - start)
    return local, start


def shape_of(source: Mapping[str, Tensor], name: str) -> tuple[int, ...]:
    """Shape of a named tensor, which is not read for it."""
    return source.shape(name) if isinstance(source, Rows) else tuple(source[name].shape)


def dtype_of(source: Mapping[str, Tensor], name: str) -> str:
    """Return dtype of a named tensor, which is not read for it, as torch writes it."""
    return source.dtype(name) if isinstance(source, Rows) else str(source[name].dtype)


@torch.no_grad()
def fill(target: Tensor, source: Mapping[str, Tensor], name: str) -> None:
    """Set a tensor, or this rank's rows of it, to the whole tensor of that name.

    Args:
        target: changed in place.
        source: plain tensors; no more is read than this rank needs.
        name: of a tensor of the same shape.
    """
    rows, start = own_rows(target)
    rows.copy_(_read(source, name, rows, start))


def read_like(source: Mapping[str, Tensor], name: str, like: Tensor | None) -> Tensor:
    """Return a new tensor, sharded as `like` is if it has the same shape, else whole.

    Args:
        source: plain tensors.
        name: of the tensor.
        like: the weight that it belongs to; None = whole.
    """
    if like is None or not is_sharded(like) or shape_of(source, name) != tuple(like.shape):
        return source[name].clone()
    rows, start = own_rows(like)
    part = _read(source, name, rows, start).clone().to(rows.device)
    from torch.distributed.tensor import DTensor

    return DTensor.from_local(
        part, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _read(source: Mapping[str, Tensor], name: str, rows: Tensor, start: int) -> Tensor:
    if rows.ndim == 0:
        return source[name]
    stop = start + len(rows)
    return source.rows(name, start, stop) if isinstance(source, Rows) else source[name][start:stop]


def total_norm(tensors: list[Tensor]) -> float:
    """Return euclidean norm of all entries together; every rank must ask for it."""
    return float(whole(torch.nn.utils.get_total_norm(tensors))) if tensors else 0.0
