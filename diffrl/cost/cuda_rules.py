"""CUDA's autocast on a CPU: tensors get the dtypes that they would have on CUDA.

Under autocast, which operations run in float32 and which in the lower precision depends on the device: layer_norm,
softmax, sum and pow of bfloat16 stay bfloat16 on a CPU and become float32 on a GPU. The lists are read from the header
that the installed PyTorch ships, and stand in the place of the CPU's own. Numbers stay the CPU's.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.library import Library, fallthrough_kernel
from torch.utils._pytree import tree_leaves, tree_map_only

HEADER = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"
KEY = "AutocastCPU"
AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
NORMS = ("norm.Scalar", "norm.ScalarOpt_dim")
"""In a list of their own, since float32 is asked of them by another overload."""


def listed(macro: str) -> list[str]:
    """Return the operations of one of the header's lists, as "name" or "name.overload"."""
    body = re.search(rf"#define {macro}\(_\)((?:.*\\\n)+.*)", HEADER.read_text(encoding="utf-8"))
    if body is None:
        raise LookupError(f"{HEADER} has no list {macro}")
    return [f"{name}.{kind}" if kind else name for name, kind in re.findall(r"_\((\w+)(?:, (\w+))?\)", body[1])]


def cast(arguments: Any, dtype: torch.dtype) -> Any:
    """Cast the tensors that autocast may: of floating point, but not of float64."""
    may = (torch.float32, torch.bfloat16, torch.float16)
    return tree_map_only(torch.Tensor, lambda x: x.to(dtype) if x.dtype in may else x, arguments)


def lower(op: Callable[..., Any], arguments: Any) -> Any:
    """Run in autocast's own dtype."""
    args, kwargs = cast(arguments, torch.get_autocast_dtype("cpu"))
    return op(*args, **kwargs)


def float32(op: Callable[..., Any], arguments: Any) -> Any:
    """Run in float32."""
    args, kwargs = cast(arguments, torch.float32)
    return op(*args, **kwargs)


def widest(op: Callable[..., Any], arguments: Any) -> Any:
    """Run in float32 if any tensor is."""
    wide = any(isinstance(x, torch.Tensor) and x.dtype == torch.float32 for x in tree_leaves(arguments))
    args, kwargs = cast(arguments, torch.float32) if wide else arguments
    return op(*args, **kwargs)


def to_float32(op: Callable[..., Any], arguments: Any) -> Any:
    """Read the lower precision and give float32, unless a dtype is asked for."""
    args, kwargs = arguments
    position = [argument.name for argument in op._schema.arguments].index("dtype")  # type: ignore[attr-defined]
    asked = args[position] if position < len(args) else kwargs.get("dtype")
    if asked is None and args[0].dtype in (torch.bfloat16, torch.float16):
        args, kwargs = args[:position], kwargs | {"dtype": torch.float32}
    return op(*args, **kwargs)


RULES: Sequence[tuple[str, Callable[..., Any]]] = (
    ("AT_FORALL_LOWER_PRECISION_FP", lower),
    ("AT_FORALL_FP32", float32),
    ("AT_FORALL_FP32_SET_OPT_DTYPE", to_float32),
    ("AT_FORALL_PROMOTE", widest),
)


def install(library: Library) -> None:
    """Put CUDA's rules in the place of the CPU's.

    Args:
        library: of the namespace "aten"; as long as it lives, the rules hold.
    """
    rules = {name: rule for macro, rule in RULES for name in listed(macro)} | dict.fromkeys(NORMS, float32)
    names = [name.removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")]
    implemented = {name for name in names if torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", KEY)}
    for name in implemented - rules.keys():
        library.impl(name, fallthrough_kernel, KEY)
    for name, rule in rules.items():
        if name in names and not (
            rule is lower and name in implemented
        ):  # the CPU's keeps casts of weights, as CUDA's does
            library.impl(name, _kernel(name, rule), KEY)


def _kernel(name: str, rule: Callable[..., Any]) -> Callable[..., Any]:
    packet, _, overload = name.partition(".")
    op = getattr(getattr(torch.ops.aten, packet), overload or "default")

    def kernel(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(AUTOCAST):
            return rule(op, (args, kwargs))

    return kernel


@contextmanager
def cuda_rules() -> Iterator[None]:
    """Let CPU tensors follow CUDA's rules under autocast until the block ends."""
    with torch.library._scoped_library("aten", "IMPL") as library:
        install(library)
        yield
