"""The policy in low precision: a frozen copy that explores, and into which the policy's weights are pushed in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from diffrl.precision.backends import find_backend
from diffrl.precision.backends.base import Backend
from diffrl.precision.layers import choose_layers
from diffrl.precision.report import PrecisionError, PrecisionReport
from diffrl.precision.verify import dtype_name, numerical_problem, observe_products, probe
from diffrl.precision.weights import lora_layers, merged, plain_copy, plain_tensors

FLOAT32_INPUTS = frozenset({"timestep", "guidance"})
"""Keyword inputs that are never cast: bfloat16 cannot tell timestep 899 from 900."""


class HasTransformer(Protocol):
    """What the copy needs of a model adapter."""

    transformer: nn.Module


class LowPrecisionNetwork(nn.Module):
    """A network that is called as the original is: floating-point inputs are cast to its own dtype, autocast is off.

    Whatever else the caller asks of it, such as `config`, is the inner network's.
    """

    def __init__(self, inner: nn.Module, dtype: torch.dtype):
        super().__init__()
        self.inner = inner
        self.compute_dtype = dtype

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The inner network's output, in its own dtype."""
        inputs = [self._cast(value) for value in args]
        named = {name: value if name in FLOAT32_INPUTS else self._cast(value) for name, value in kwargs.items()}
        device = next(self.inner.parameters()).device
        with torch.autocast(device.type, enabled=False):
            return self.inner(*inputs, **named)

    def _cast(self, value: Any) -> Any:
        return value.to(self.compute_dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


class PolicyCopy:
    """A frozen low-precision copy of a transformer; `make_copy` makes it.

    Args:
        inner: the network with its layers converted.
        quantised: its converted layers by name.
        backend: what converted them.
        report: what it computes in.
    """

    def __init__(self, inner: nn.Module, quantised: Mapping[str, nn.Module], backend: Backend, report: PrecisionReport):
        self.module: nn.Module = LowPrecisionNetwork(inner, backend.outside_dtype).eval()
        self.report = report
        self._inner = inner
        self._quantised = dict(quantised)
        self._backend = backend
        self._rest = {
            name: tensor for name, tensor in plain_tensors(inner).items() if name.rpartition(".")[0] not in quantised
        }

    @torch.no_grad()
    def push(self, source: nn.Module) -> None:
        """Write the source's current weights, LoRA merged, into the copy in place: no storage moves.

        Args:
            source: the network that the copy was made of, or one like it; with or without LoRA, not wrapped by DDP.

        Raises:
            ValueError: it has other weights than the copy.
        """
        tensors, lora = plain_tensors(source), lora_layers(source)
        expected = set(self._rest)
        for name in self._quantised:
            expected |= {f"{name}.{kind}" for kind in ("weight", "bias") if f"{name}.{kind}" in tensors}
        if odd := sorted(expected ^ tensors.keys()):
            raise ValueError(f"The source must have the copy's weights. Missing in one of the two: {odd[:3]}.")
        for name, target in self._rest.items():
            target.copy_(merged(name, tensors[name], lora))
        for name, layer in self._quantised.items():
            weight, bias = self._weights(name, tensors, lora)
            layer.refresh(weight, bias)  # type: ignore[operator]

    def check(self, source: nn.Module, forward: Callable[[], object] | None = None) -> None:
        """Hold the copy to its report: its layers, what they multiply, their numbers.

        Args:
            source: the network whose weights were pushed last.
            forward: runs the whole copy once, on any input; without it each layer runs on its own.

        Raises:
            PrecisionError: names the layers that are not what was planned.
        """
        tensors, lora = plain_tensors(source), lora_layers(source)
        device = next(self.module.parameters()).device
        problems = self._misplaced()
        numbers: dict[str, str | None] = {}

        def run_probes() -> None:
            for name, layer in self._quantised.items():
                weight, bias = self._weights(name, tensors, lora)
                x, y = probe(layer, weight.shape[-1], self._backend, device)
                numbers[name] = numerical_problem(x, y, weight.to(device), bias, self._backend)

        for run in [run_probes] if forward is None else [run_probes, forward]:
            for name, seen in observe_products(self._quantised, run).items():
                if seen != self.report.compute_dtype:
                    problems.append(f"{name} multiplied {seen}, not {self.report.compute_dtype}")
        problems += [f"{name}: {problem}" for name, problem in numbers.items() if problem is not None]
        if problems:
            raise PrecisionError(
                f"The {self.report.precision} copy ({self.report.engine}) must compute as planned. Got "
                f"{len(problems)} deviations: {'; '.join(problems[:3])}. Choose another rollout.explore.engine or "
                "precision."
            )

    @contextmanager
    def in_place_of(self, adapter: HasTransformer) -> Iterator[None]:
        """Inside, the adapter's transformer is the copy."""
        live, adapter.transformer = adapter.transformer, self.module
        try:
            yield
        finally:
            adapter.transformer = live

    def _misplaced(self) -> list[str]:
        """Layers that are in the network otherwise than the report says."""
        modules = dict(self._inner.named_modules())
        planned = set(self.report.quantised)
        wrong = [name for name in planned if modules.get(name) is not self._quantised.get(name, self)]
        kept = {name for name, _ in self.report.kept}
        linears = {name for name, module in modules.items() if isinstance(module, nn.Linear)} - planned
        return [f"{name} is not in low precision" for name in sorted({*wrong, *(linears - kept)})]

    @staticmethod
    def _weights(name: str, tensors: Mapping[str, Tensor], lora: Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
        """A layer's merged weight (N, K) and its bias (N,)."""
        return merged(f"{name}.weight", tensors[f"{name}.weight"], lora), tensors.get(f"{name}.bias")


def make_copy(
    source: nn.Module, precision: str, engine: str, exclude: Sequence[str], device: torch.device | str
) -> PolicyCopy:
    """Copy a network into a low precision, push its weights and check the result.

    Args:
        source: the network; peft may have added LoRA to it. It is not changed.
        precision: bfloat16, int8, fp8 or nvfp4.
        engine: auto runs it for real or refuses; emulated rounds to it and multiplies in float32.
        exclude: patterns of layers that stay in high precision; see `layers.matches`. A bfloat16 copy casts all.
        device: where the copy lives.

    Raises:
        ConfigError: precision, engine or exclude cannot be had here.
        PrecisionError: the copy does not compute what was asked for.
    """
    device = torch.device(device)
    backend: Backend = find_backend(precision, engine, device)
    inner = plain_copy(source, backend.outside_dtype, device)
    total = sum(parameter.numel() for parameter in inner.parameters())
    chosen, kept = choose_layers(inner, () if backend.whole else exclude, backend.unfit)
    weights = sum(m.weight.numel() for m in inner.modules() if isinstance(m, nn.Linear))
    converted = sum(layer.weight.numel() for layer in chosen.values())
    quantised = {name: backend.convert(layer) for name, layer in chosen.items()}
    for name, layer in quantised.items():
        inner.set_submodule(name, layer)
    report = PrecisionReport(
        precision=precision,
        engine=backend.name,
        compute_dtype=dtype_name(backend.compute_dtype),
        outside_dtype=dtype_name(backend.outside_dtype),
        quantised=tuple(quantised),
        kept=tuple(kept.items()),
        parameters_quantised=converted / total,
        weights_quantised=converted / weights,
    )
    policy_copy = PolicyCopy(inner, quantised, backend, report)
    policy_copy.push(source)
    policy_copy.check(source)
    return policy_copy
