"""Attention of diffusers' older processors (SD3, SANA) through its dispatcher: they call PyTorch's function themselves.

The processor is the stock one; while it runs, its one call of `scaled_dot_product_attention` goes to the backend.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from diffusers.models.attention_dispatch import AttentionBackendName, dispatch_attention_fn
from diffusers.models.attention_processor import JointAttnProcessor2_0
from diffusers.models.transformers.sana_transformer import SanaAttnProcessor2_0
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

PLAIN = (JointAttnProcessor2_0, SanaAttnProcessor2_0)
"""Processors that ask PyTorch; SANA's linear attention is none: it has no softmax that a kernel could fuse."""


class _Through(TorchFunctionMode):
    """Within, attention goes through diffusers' dispatcher."""

    def __init__(self, backend: str):
        super().__init__()
        self.backend = AttentionBackendName(backend)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is not nn.functional.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        return _dispatched(*args, backend=self.backend, **(kwargs or {}))


def _dispatched(query: Tensor, key: Tensor, value: Tensor, *, backend: AttentionBackendName, **options: Any) -> Tensor:
    """Return (B, H, L, D) each, as PyTorch has them; the dispatcher has (B, L, H, D)."""
    turned = (x.transpose(1, 2) for x in (query, key, value))
    attended: Tensor = dispatch_attention_fn(*turned, backend=backend, **options)
    return attended.transpose(1, 2)


def dispatch_plain(transformer: nn.Module, backend: str) -> bool:
    """Send the attention of a transformer's older processors to a backend; whether it has such.

    Args:
        transformer: of diffusers; its processors are replaced.
        backend: a name of diffusers' dispatcher.
    """
    plain = [m for m in transformer.modules() if isinstance(getattr(m, "processor", None), PLAIN)]
    for module in plain:
        module.set_processor(_made(next(kind for kind in PLAIN if isinstance(module.processor, kind)), backend))  # type: ignore[operator]
    return bool(plain)


def _made(kind: type, backend: str) -> Any:
    """Make a processor whose attention goes to a backend; its signature is its kind's, by which it is called."""

    @functools.wraps(kind.__call__)  # type: ignore[operator]
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        with _Through(backend):
            return kind.__call__(self, *args, **kwargs)  # type: ignore[operator]

    return type(f"Dispatched{kind.__name__}", (kind,), {"__call__": call})()
