"""The policy in low precision: a frozen copy that explores, and into which the policy's weights are pushed in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from diffrl.errors import ConfigError
from diffrl.precision import checks
from diffrl.precision.building import Built, build
from diffrl.precision.choice import find_backend, machine_of, uncompilable
from diffrl.precision.compiled import COMPILER, CompiledBlocks, compile_network
from diffrl.precision.compiled import Backend as Compiler
from diffrl.precision.engines.base import Backend
from diffrl.precision.observe import Shape, dtype_name, uncounted_note, watching
from diffrl.precision.report import PrecisionError, PrecisionReport, kernel_names, slow_note, speed_up
from diffrl.precision.weights import lora_layers, merged, plain_tensors, refuse_quantised

__all__ = ["HasTransformer", "LowPrecisionNetwork", "PolicyCopy", "make_copy"]


class HasTransformer(Protocol):
    """What the copy needs of a model adapter."""

    transformer: nn.Module


FLOAT32_INPUTS = frozenset({"timestep", "guidance"})
"""Keyword inputs that are never cast: bfloat16 cannot tell timestep 899 from 900."""


class LowPrecisionNetwork(nn.Module):
    """A network that is called as the original is: floating-point inputs are cast to its own dtype, autocast is off.

    Whatever else the caller asks of it, such as `config`, is the inner network's.

    Args:
        inner: the network.
        dtype: its own.
        compiler: a backend of torch.compile for its blocks, by name or a function; None leaves them uncompiled.
    """

    def __init__(self, inner: nn.Module, dtype: torch.dtype, compiler: Compiler | None = None):
        super().__init__()
        self.inner = inner
        self.compute_dtype = dtype
        self.compiled: CompiledBlocks | None = (
            None if compiler is None else compile_network(inner, compiler, whole=True)
        )

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("inner"), name)

    @torch.no_grad()
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return the inner network's output, in its own dtype."""
        inputs = [self._cast(value) for value in args]
        named = {name: value if name in FLOAT32_INPUTS else self._cast(value) for name, value in kwargs.items()}
        device = next(self.inner.parameters()).device
        with torch.autocast(device.type, enabled=False):
            return self.inner(*inputs, **named)

    def eager(self) -> AbstractContextManager[None]:
        """Run it uncompiled until the block ends, so that its products pass the dispatcher."""
        return nullcontext() if self.compiled is None else self.compiled.off()

    def _cast(self, value: Any) -> Any:
        return value.to(self.compute_dtype) if isinstance(value, Tensor) and value.is_floating_point() else value


class PolicyCopy:
    """A frozen low-precision copy of a transformer; `make_copy` makes it.

    Args:
        built: the network with its layers converted.
        backend: what converted them.
        report: what it computes in.
        compiler: a backend of torch.compile; None leaves it uncompiled.
    """

    def __init__(self, built: Built, backend: Backend, report: PrecisionReport, compiler: Compiler | None = None):
        self._network = LowPrecisionNetwork(built.network, backend.outside_dtype, compiler).eval()
        self.module: nn.Module = self._network
        self.report = report
        self._built, self._layers = built, built.quantised
        self._backend = backend
        self._pointers = checks.pointers(built.network)
        self._pushes = 0

    @torch.no_grad()
    def sync_weights(self, source: nn.Module) -> None:
        """Write the source's current weights, LoRA merged, into the copy in place, and look at some of them.

        Args:
            source: the network that the copy was made of, or one like it; with or without LoRA, not wrapped by DDP.

        Raises:
            ValueError: it has other weights than the copy.
            PrecisionError: weights did not arrive, storages moved, or the copy compiles anew without cause.
        """
        tensors, lora = plain_tensors(source), lora_layers(source)
        weight_of = _weight_of(tensors, lora)
        expected = set(self._built.rest)
        for name in self._layers:
            expected |= {f"{name}.{kind}" for kind in ("weight", "bias") if f"{name}.{kind}" in tensors}
        if odd := sorted(expected ^ tensors.keys()):
            raise ValueError(f"The source must have the copy's weights. Missing in one of the two: {odd[:3]}.")
        for name, target in self._built.rest.items():
            target.copy_(merged(name, tensors[name], lora))
        looked_at, problems = checks.sampled(list(self._layers), self._pushes), []
        for name, layer in self._layers.items():
            weight, bias = weight_of(name)
            layer.refresh(weight, bias)  # type: ignore[operator]
            if name in looked_at:
                problems += checks.stale_weight(name, layer, weight, bias, self._backend)
        self._pushes += 1
        self._refuse(
            [*checks.moved(self._pointers, checks.pointers(self._built.network)), *problems, *self._recompiled()]
        )

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
        layers, device = self._layers, next(self.module.parameters()).device
        weight_of = _weight_of(plain_tensors(source), lora_layers(source))
        problems = checks.misplaced(self._built, self.report, self._backend)
        problems = problems or checks.moved(self._pointers, checks.pointers(self._built.network))
        problems += checks.foreign(layers, self._backend)
        with watching(layers) as seen:
            numbers = checks.wrong_numbers(layers, weight_of, self._backend, device)
        problems += checks.wrong_products(layers, seen, self._backend)
        if forward is not None:
            problems += self._whole_problems(forward, batches, device)
        self._refuse([*problems, *numbers])

    @contextmanager
    def in_place_of(self, adapter: HasTransformer) -> Iterator[None]:
        """Let the adapter's transformer be the copy until the block ends."""
        live, adapter.transformer = adapter.transformer, self.module
        try:
            yield
        finally:
            adapter.transformer = live

    def _whole_problems(self, forward: Callable[[], object], batches: Sequence[int], device: torch.device) -> list[str]:
        """Run the whole copy, then every product that other batch sizes lead to; note what was seen."""
        with self._network.eager(), watching(self._layers) as seen:
            forward()
        problems = checks.wrong_products(self._layers, seen, self._backend)
        wanted = {
            name: {(rows * batch, k, n) for rows, k, n in layer_shapes for batch in batches}
            for name, layer_shapes in seen.shapes.items()
        }
        shapes, failed = checks.shape_problems(self._layers, wanted, self._backend, device)
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
        ratio = None if self._backend.whole else speed_up(self._layers, shapes, self._backend.outside_dtype, device)
        slow = slow_note(self.report.precision, ratio, self._network.compiled is not None)
        forward()  # compiles, if it is to be
        self.report = replace(
            self.report,
            kernels=kernel_names(forward, device),
            speed_up=ratio,
            notes=(*self.report.notes, *([slow] if slow else [])),
        )

    def _recompiled(self) -> list[str]:
        compiled = self._network.compiled
        if compiled is None or not compiled.again:
            return []
        return [f"it was compiled {compiled.again} times again for shapes that it had been compiled for"]

    def _refuse(self, problems: Sequence[str]) -> None:
        if problems:
            raise PrecisionError(
                f"The {self.report.precision} copy ({self.report.engine}) must compute as planned. Got "
                f"{len(problems)} deviations: {'; '.join(problems[:3])}. Choose another engine or "
                "precision."
            )


def make_copy(
    source: nn.Module,
    precision: str,
    engine: str,
    exclude: Sequence[str],
    device: torch.device | str,
    compile: bool | Compiler = False,
    section: str = "rollout.explore",
) -> PolicyCopy:
    """Copy a network into a low precision and check the result. No more is allocated than the copy and a layer or two.

    Args:
        source: the network; peft may have added LoRA to it. It is not changed.
        precision: a key of `formats.PRECISIONS`.
        engine: auto runs it for real or refuses; emulated rounds to it and multiplies wider; others by name.
        exclude: patterns of layers that stay in high precision; see `layers.matches`. A bfloat16 copy casts all.
        device: where the copy lives.
        compile: whether torch.compile makes its graph, at the first call; or with which of its backends.
        section: of the configuration that asks for it, for messages.

    Raises:
        ConfigError: precision, engine or exclude cannot be had here.
        PrecisionError: the copy does not compute what was asked for.
    """
    device = torch.device(device)
    backend: Backend = find_backend(precision, engine, device, section)
    refuse_quantised(source)
    if compile and (reason := uncompilable(precision, backend.name, machine_of(device))):
        raise ConfigError(f"{section}.compile must be false with {precision} ({backend.name}) here: {reason}.")
    try:
        built = build(source, backend, exclude, device)
    except ConfigError as error:  # of `exclude`
        raise ConfigError([f"{section}.{problem}" for problem in error.problems]) from error
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


def _weight_of(tensors: Mapping[str, Tensor], lora: Mapping[str, Any]) -> checks.WeightOf:
    """Return what finds a layer's merged weight (N, K) and its bias (N,)."""

    def find(name: str) -> tuple[Tensor, Tensor | None]:
        return merged(f"{name}.weight", tensors[f"{name}.weight"], lora).flatten(1), tensors.get(f"{name}.bias")

    return find
