"""The policy in low precision: a frozen copy that explores, and into which the policy's weights are pushed in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from diffrl.errors import ConfigError
from diffrl.precision.backends import find_backend
from diffrl.precision.backends.base import Backend
from diffrl.precision.backends.machine import machine_of, uncompilable
from diffrl.precision.building import Built, build, plain_linear
from diffrl.precision.facts import PrecisionError, PrecisionReport
from diffrl.precision.layers import linear_layers
from diffrl.precision.network import COMPILER, LowPrecisionNetwork
from diffrl.precision.observe import Observation, Shape, dtype_name, uncounted_note, watching
from diffrl.precision.pointwise import Pointwise
from diffrl.precision.refresh import moved, pointers, sampled, weight_problem
from diffrl.precision.speed import kernel_names, slow_note, speed_up
from diffrl.precision.verify import (
    GEMM_ERRORS,
    expected_product,
    numerical_problem,
    probe,
    product_names,
    shape_problems,
)
from diffrl.precision.weights import lora_layers, merged, plain_tensors, refuse_quantised

__all__ = ["HasTransformer", "LowPrecisionNetwork", "PolicyCopy", "make_copy"]


class HasTransformer(Protocol):
    """What the copy needs of a model adapter."""

    transformer: nn.Module


class PolicyCopy:
    """A frozen low-precision copy of a transformer; `make_copy` makes it.

    Args:
        built: the network with its layers converted.
        backend: what converted them.
        report: what it computes in.
        compiler: a backend of torch.compile; None leaves it uncompiled.
    """

    def __init__(
        self, built: Built, backend: Backend, report: PrecisionReport, compiler: str | Callable[..., Any] | None = None
    ):
        self._network = LowPrecisionNetwork(built.network, backend.outside_dtype, compiler).eval()
        self.module: nn.Module = self._network
        self.report = report
        self._inner = built.network
        self._quantised = dict(built.quantised)
        self._backend = backend
        self._rest = dict(built.rest)
        self._pointers = pointers(built.network)
        self._pushes = 0

    @torch.no_grad()
    def push(self, source: nn.Module) -> None:
        """Write the source's current weights, LoRA merged, into the copy in place, and look at some of them.

        Args:
            source: the network that the copy was made of, or one like it; with or without LoRA, not wrapped by DDP.

        Raises:
            ValueError: it has other weights than the copy.
            PrecisionError: weights did not arrive, storages moved, or the copy compiles anew without cause.
        """
        tensors, lora = plain_tensors(source), lora_layers(source)
        expected = set(self._rest)
        for name in self._quantised:
            expected |= {f"{name}.{kind}" for kind in ("weight", "bias") if f"{name}.{kind}" in tensors}
        if odd := sorted(expected ^ tensors.keys()):
            raise ValueError(f"The source must have the copy's weights. Missing in one of the two: {odd[:3]}.")
        for name, target in self._rest.items():
            target.copy_(merged(name, tensors[name], lora))
        looked_at, problems = sampled(list(self._quantised), self._pushes), []
        for name, layer in self._quantised.items():
            weight, bias = _weights(name, tensors, lora)
            layer.refresh(weight, bias)  # type: ignore[operator]
            if name in looked_at:
                problems += self._weight_problems(name, layer, weight, bias)
        self._pushes += 1
        self._refuse([*moved(self._pointers, pointers(self._inner)), *problems, *self._recompiled()])

    def check(
        self, source: nn.Module, forward: Callable[[], object] | None = None, batches: Sequence[int] = (1,)
    ) -> None:
        """Hold the copy to its report: its layers, what they multiply, their numbers, every weight.

        Args:
            source: the network whose weights were pushed last.
            forward: runs the whole copy once, on one sample; without it each layer runs on its own. What it shows is
                put into the report.
            batches: numbers of samples that the rollout will ask for at a time; every matrix product that then comes
                up is tried.

        Raises:
            PrecisionError: names the layers that are not what was planned.
        """
        tensors, lora = plain_tensors(source), lora_layers(source)
        device = next(self.module.parameters()).device
        problems = self._misplaced() or moved(self._pointers, pointers(self._inner))
        for name, layer in self._quantised.items():
            if wrong := self._backend.inspect(layer):
                problems.append(f"{name}: {wrong}")
        numbers: list[str] = []
        with watching(self._quantised) as seen:
            for name, layer in self._quantised.items():
                weight, bias = _weights(name, tensors, lora)
                try:
                    x, y = probe(layer, weight.shape[-1], self._backend, device)
                except GEMM_ERRORS as error:
                    numbers.append(f"{name} cannot be multiplied: {str(error).splitlines()[0]}")
                    continue
                wrong = numerical_problem(x, y, weight.to(device), bias, self._backend)
                numbers += [f"{name}: {wrong}"] if wrong else self._weight_problems(name, layer, weight, bias)
        problems += self._product_problems(seen)
        if forward is not None:
            problems += self._whole_problems(forward, batches, device)
        self._refuse([*problems, *numbers])

    @contextmanager
    def in_place_of(self, adapter: HasTransformer) -> Iterator[None]:
        """Inside, the adapter's transformer is the copy."""
        live, adapter.transformer = adapter.transformer, self.module
        try:
            yield
        finally:
            adapter.transformer = live

    def _whole_problems(self, forward: Callable[[], object], batches: Sequence[int], device: torch.device) -> list[str]:
        """Run the whole copy, then every product that other batch sizes lead to; note what was seen."""
        with self._network.eager(), watching(self._quantised) as seen:
            forward()
        problems = self._product_problems(seen)
        wanted = {
            name: {(rows * batch, k, n) for rows, k, n in own for batch in batches} for name, own in seen.shapes.items()
        }
        shapes, failed = shape_problems(self._quantised, wanted, self._backend, device)
        self.report = replace(
            self.report,
            flops_quantised=seen.flops_quantised,
            flops=dict(seen.flops),
            shapes=tuple(shapes),
            notes=(*self.report.notes, *([note] if (note := uncounted_note(seen)) else [])),
        )
        if device.type == "cuda" and self._backend.real and not problems and not failed:
            self._measure(forward, wanted, device)
        return [*problems, *failed]

    def _measure(self, forward: Callable[[], object], shapes: Mapping[str, set[Shape]], device: torch.device) -> None:
        """Put the GPU's kernels and the speed-up of the layers into the report."""
        ratio = None if self._backend.whole else speed_up(self._quantised, shapes, self._backend.outside_dtype, device)
        slow = slow_note(self.report.precision, ratio, self._network.compiled is not None)
        forward()  # compiles, if it is to be
        self.report = replace(
            self.report,
            kernels=kernel_names(forward, device),
            speed_up=ratio,
            notes=(*self.report.notes, *([slow] if slow else [])),
        )

    def _product_problems(self, seen: Observation) -> list[str]:
        """Layers that multiplied something other than planned."""
        if not self._backend.dispatched:
            return []
        expected, found = expected_product(self._backend), product_names(self._quantised, seen)
        return [f"{name} multiplied {what}, not {expected}" for name, what in found.items() if what != expected]

    def _weight_problems(self, name: str, layer: Any, weight: Tensor, bias: Tensor | None) -> list[str]:
        held = layer.dequantised()
        fresh: Any = self._backend.convert(plain_linear(weight, bias, held.device))
        problem = weight_problem(held, fresh.dequantised())
        return [f"{name}: {problem}"] if problem else []

    def _misplaced(self) -> list[str]:
        """Layers that are in the network otherwise than the report says."""
        modules = dict(self._inner.named_modules())
        wrong = [name for name, layer in self._quantised.items() if _at(modules, name) is not layer]
        wrong += [name for name in self.report.quantised if name not in self._quantised]
        kept = {name for name, _ in self.report.kept}
        inside = {id(module) for layer in self._quantised.values() for module in layer.modules()}
        found = {name for name in linear_layers(self._inner) if id(modules[name]) not in inside}
        linears = {name for name in found if not self._backend.whole or isinstance(modules[name], nn.Linear)}
        return [f"{name} is not in low precision" for name in sorted({*wrong, *(linears - kept)})]

    def _recompiled(self) -> list[str]:
        compiled = self._network.compiled
        if compiled is None or not compiled.again:
            return []
        return [f"it was compiled {compiled.again} times again for shapes that it had been compiled for"]

    def _refuse(self, problems: Sequence[str]) -> None:
        if problems:
            raise PrecisionError(
                f"The {self.report.precision} copy ({self.report.engine}) must compute as planned. Got "
                f"{len(problems)} deviations: {'; '.join(problems[:3])}. Choose another rollout.explore.engine or "
                "precision."
            )


def make_copy(
    source: nn.Module,
    precision: str,
    engine: str,
    exclude: Sequence[str],
    device: torch.device | str,
    compile: bool | str | Callable[..., Any] = False,
) -> PolicyCopy:
    """Copy a network into a low precision and check the result. No more is allocated than the copy and a layer or two.

    Args:
        source: the network; peft may have added LoRA to it. It is not changed.
        precision: bfloat16, int8, fp8, mxfp8 or nvfp4.
        engine: auto runs it for real or refuses; emulated rounds to it and multiplies in float32; others by name.
        exclude: patterns of layers that stay in high precision; see `layers.matches`. A bfloat16 copy casts all.
        device: where the copy lives.
        compile: whether torch.compile makes its graph, at the first call; or with which of its backends.

    Raises:
        ConfigError: precision, engine or exclude cannot be had here.
        PrecisionError: the copy does not compute what was asked for.
    """
    device = torch.device(device)
    backend: Backend = find_backend(precision, engine, device)
    refuse_quantised(source)
    if compile and (reason := uncompilable(precision, backend.name, machine_of(device))):
        raise ConfigError(f"rollout.explore.compile must be false with {precision} ({backend.name}) here: {reason}.")
    built = build(source, backend, exclude, device)
    report = PrecisionReport(
        precision=precision,
        engine=backend.name,
        compute_dtype=dtype_name(backend.compute_dtype),
        outside_dtype=dtype_name(backend.outside_dtype),
        quantised=tuple(built.quantised),
        kept=tuple(built.kept.items()),
        parameters_quantised=built.parameters_quantised,
        weights_quantised=built.weights_quantised,
        scaling=backend.scaling,
        batch_dependent=backend.batch_dependent,
        compiled=bool(compile),
    )
    policy_copy = PolicyCopy(built, backend, report, COMPILER if compile is True else compile or None)
    policy_copy.check(source)
    return policy_copy


def _weights(name: str, tensors: Mapping[str, Tensor], lora: Mapping[str, Any]) -> tuple[Tensor, Tensor | None]:
    """A layer's merged weight (N, K) and its bias (N,)."""
    return merged(f"{name}.weight", tensors[f"{name}.weight"], lora).flatten(1), tensors.get(f"{name}.bias")


def _at(modules: Mapping[str, nn.Module], name: str) -> nn.Module | None:
    """The layer in a place, a pointwise convolution's included."""
    found = modules.get(name)
    return found.linear if isinstance(found, Pointwise) else found
