"""What adapters of diffusers pipelines share: loading, guidance, components that rest on the CPU between uses."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from diffrl.errors import ConfigError
from diffrl.models.adapter import Conditioning, DrawNoise, device_of
from diffrl.models.base_precision import quantise_base
from diffrl.models.families import Family, require_pipeline
from diffrl.models.files import read_object
from diffrl.models.vetting import vet_pipeline
from reward_models.messages import show

EMPTY = "negative_"
"""Prefix of the conditioning of the empty prompt, for classifier-free guidance."""


@dataclass(frozen=True)
class Placement:
    """Where a pipeline's parts live and how they are run.

    Args:
        device: of the transformer, and of whatever is not offloaded.
        offload: "text_encoders" and "vae" rest on the CPU and come to the device for each use.
        vae_dtype: None leaves the choice to the family.
        vae_slicing: decode one picture at a time.
        vae_tiling: decode in overlapping tiles.
        attention: a backend of diffusers' attention dispatcher; None is diffusers' own choice, "native".
        base_precision: int8 or nf4 keeps the transformer's frozen weights so; None keeps them in `dtype`.
        compile: torch.compile the transformer's blocks.
    """

    device: torch.device = torch.device("cpu")
    offload: tuple[str, ...] = ()
    vae_dtype: torch.dtype | None = None
    vae_slicing: bool = False
    vae_tiling: bool = False
    attention: str | None = None
    base_precision: str | None = None
    compile: bool = False


class PipelineAdapter(ABC):
    """A diffusers pipeline as velocities over sigmas; a family fills in `predict`, `init_latents` and the rest.

    Args:
        pipeline: the diffusers pipeline; its components are used, not copied.
        dtype: what the transformer computes in. Trainable weights stay float32; below float32 it runs under autocast.
        max_sequence_length: text tokens of a prompt; None takes the family's default.
    """

    family: ClassVar[Family]
    vae_dtype: ClassVar[torch.dtype | None] = None
    """What the picture decoder needs; None = what the pipeline computes in."""

    def __init__(self, pipeline: Any, dtype: torch.dtype = torch.float32, max_sequence_length: int | None = None):
        self.pipeline = pipeline
        self.transformer: nn.Module = pipeline.transformer
        self.dtype = dtype
        self.max_sequence_length = max_sequence_length or self.family.max_sequence_length
        self.placement = Placement(device=device_of(self.transformer))
        _require_short_texts(pipeline)
        self._present: set[str] = set()

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path,
        *,
        dtype: torch.dtype = torch.float32,
        placement: Placement | None = None,
        revision: str | None = None,
        **options: Any,
    ) -> Self:
        """Load a diffusers directory or hub id; frozen parts in `dtype`, everything in eval mode, nothing trainable."""
        import diffusers
        from diffusers.utils.logging import disable_progress_bar
        from transformers.utils.logging import disable_progress_bar as disable_transformers_progress_bar

        disable_progress_bar()
        disable_transformers_progress_bar()
        placement = placement or Placement()
        found = pipeline_class_of(path, revision)
        require_pipeline(cls.family, found, str(path))
        folder = path_of(path, revision)
        vet_pipeline(folder)
        pipeline = getattr(diffusers, found).from_pretrained(str(folder), dtype=dtype, use_safetensors=True)
        pipeline.set_progress_bar_config(disable=True)
        for component in pipeline.components.values():
            if isinstance(component, nn.Module):
                component.requires_grad_(False).eval()
        adapter = cls(pipeline, dtype=dtype, **options)
        adapter.place(placement)
        return adapter

    def place(self, placement: Placement) -> None:
        """Quantise the frozen transformer if asked for, and bring the components to where they belong."""
        self.placement = placement
        if placement.base_precision is not None:
            for module in self.trainable_modules().values():
                quantise_base(module, self.family.exclude, placement.base_precision, self.dtype)
        for name, component in self.pipeline.components.items():
            if isinstance(component, nn.Module):
                rests = self._offloaded(name)
                component.to("cpu" if rests else placement.device)
        vae = self.pipeline.vae
        nn.Module.to(vae, placement.vae_dtype or self.vae_dtype or self.dtype)  # diffusers' own `to` warns about it
        if placement.vae_slicing:
            vae.enable_slicing()
        if placement.vae_tiling:
            vae.enable_tiling()
        if placement.attention is not None:
            set_attention(self.transformer, placement.attention)
            try_attention(placement.attention, placement.device, self.dtype)
        if placement.compile:
            compile_blocks(self.transformer)

    def _offloaded(self, name: str) -> bool:
        kind = "text_encoders" if name.startswith("text_encoder") else name
        return kind in self.placement.offload

    @contextmanager
    def on_device(self, prefix: str) -> Iterator[torch.device]:
        """Inside, components whose names begin so are on the device; offloaded ones go back to the CPU afterwards.

        Within another such block for the same names nothing moves.
        """
        if prefix in self._present:
            yield self.placement.device
            return
        resting = [
            component
            for name, component in self.pipeline.components.items()
            if name.startswith(prefix) and isinstance(component, nn.Module) and self._offloaded(name)
        ]
        self._present.add(prefix)
        for component in resting:
            component.to(self.placement.device)
        try:
            yield self.placement.device
        finally:
            self._present.discard(prefix)
            for component in resting:
                component.to("cpu")

    def take_size(self, height: int | None, width: int | None, default: int, multiple: int) -> None:
        """Set `height` and `width` in pixels, the pipeline's own where None is asked for.

        Raises:
            ConfigError: they do not come out in whole patches.
        """
        self.height, self.width = height or default, width or default
        require_multiple(self.height, self.width, multiple)

    def vae_output(self, unscaled: Tensor) -> Tensor:
        """What the decoder makes of latents in its own units: in [-1, 1], on the device."""
        vae = self.pipeline.vae
        with self.on_device("vae") as device:
            decoded: Tensor = vae.decode(unscaled.to(device, vae.dtype), return_dict=False)[0]
        return decoded

    @abstractmethod
    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """As in `ModelAdapter`; what begins with `EMPTY` is of the empty prompt."""

    @abstractmethod
    def init_latents(self, draw: DrawNoise) -> Tensor:
        """As in `ModelAdapter`."""

    @abstractmethod
    def sigmas(self, steps: int) -> Tensor:
        """As in `ModelAdapter`."""

    @abstractmethod
    def predict(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """One network call: latents (B, ...) in `dtype`, sigma (B,), conditioning without the empty prompt's."""

    @abstractmethod
    def decode(self, latents: Tensor) -> Tensor:
        """As in `ModelAdapter`."""

    def velocity(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """As in `ModelAdapter`; classifier-free guidance above 1 evaluates the empty prompt in the same call."""
        own = {name: tensor for name, tensor in conditioning.items() if not name.startswith(EMPTY)}
        guided = self.family.calls_per_step(guidance_scale) == 2
        if guided:
            own = {name: torch.cat([conditioning[EMPTY + name], tensor]) for name, tensor in own.items()}
            latents, sigma = torch.cat([latents, latents]), torch.cat([sigma, sigma])
        with torch.autocast(latents.device.type, dtype=self.dtype, enabled=self.dtype != torch.float32):
            output = self.predict(latents.to(self.dtype), sigma, own, guidance_scale)
        if not guided:
            return output.float()
        return self.guide(*output.float().chunk(2), guidance_scale)

    def guide(self, unconditional: Tensor, conditional: Tensor, guidance_scale: float) -> Tensor:
        """Classifier-free guidance (Ho and Salimans, arXiv 2207.12598)."""
        return unconditional + guidance_scale * (conditional - unconditional)

    def trainable_modules(self) -> Mapping[str, nn.Module]:
        """The transformer alone."""
        return {"transformer": self.transformer}

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """What a pipeline's own settings file may hold."""
        return tuple(name for name in inspect.signature(cls).parameters if name not in ("pipeline", "dtype"))


def latent_statistics(vae: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation of a video decoder's latents, (1, C, 1, 1, 1) each."""
    mean, std = (
        torch.tensor(values, device=device).view(1, -1, 1, 1, 1)
        for values in (vae.config.latents_mean, vae.config.latents_std)
    )
    return mean, std


def require_multiple(height: int, width: int, multiple: int) -> None:
    """Refuse a size that does not come out in whole patches.

    Raises:
        ConfigError: names the multiple.
    """
    if height % multiple or width % multiple:
        near = [max(multiple, round(side / multiple) * multiple) for side in (height, width)]
        raise ConfigError(
            f"model.height and model.width must be multiples of {multiple}. Got {height} x {width}. Take {near[0]} x "
            f"{near[1]}."
        )


def pipeline_class_of(path: str | Path, revision: str | None = None) -> str:
    """The pipeline class that a diffusers directory or hub id says it is.

    Raises:
        ConfigError: the directory's index cannot be read, or names no class.
        OSError, ValueError: the hub's cannot be had.
    """
    if Path(path).is_dir():
        index = Path(path) / "model_index.json"
        name = read_object(index).get("_class_name")
        if not isinstance(name, str) or not name:
            raise ConfigError(f"{index} is not the index of a pipeline: it names no class. Save the pipeline again.")
        return name
    from diffusers import DiffusionPipeline

    return str(DiffusionPipeline.load_config(str(path), revision=revision).get("_class_name"))


def _require_short_texts(pipeline: Any) -> None:
    """Refuse a CLIP tokenizer that would fill prompts up to more than its encoder has places for.

    Raises:
        ConfigError: it would.
    """
    encoder = getattr(pipeline, "text_encoder", None)
    length, places = getattr(pipeline, "tokenizer_max_length", 0), getattr(encoder, "config", None)
    most = getattr(places, "max_position_embeddings", None)
    if most is not None and length > most:
        raise ConfigError(
            f"model_max_length of the pipeline's tokenizer must be <= {most}, the places of its text encoder. Got "
            f"{show(length)}. Mend tokenizer/tokenizer_config.json."
        )


def path_of(path: str | Path, revision: str | None) -> Path:
    """The folder of a pipeline; of one on the hub that of its files here, fetched if they are not there yet."""
    if Path(path).is_dir():
        return Path(path)
    from diffusers import DiffusionPipeline

    return Path(DiffusionPipeline.download(str(path), revision=revision, use_safetensors=True))


def set_attention(transformer: Any, name: str) -> None:
    """Run attention by another backend of diffusers.

    Raises:
        ConfigError: unknown, its package is not here, or this transformer's attention does not go through diffusers'
            dispatcher, as SD3's, which would run on unchanged.
    """
    try:
        transformer.set_attention_backend(name)
    except (ValueError, RuntimeError, ImportError) as error:
        raise ConfigError(
            f"model.attention {name!r} cannot be used: {str(error).strip().rstrip('.')}. Set model.attention: native."
        ) from error
    processors = [module.processor for module in transformer.modules() if hasattr(module, "processor")]
    if name != "native" and not any(hasattr(processor, "_attention_backend") for processor in processors):
        raise ConfigError(
            f"model.attention {name!r} cannot be used: the attention of a {type(transformer).__name__} always goes "
            "through PyTorch, which chooses the fastest kernel that it has. Set model.attention: native."
        )


def try_attention(name: str, device: torch.device, dtype: torch.dtype) -> None:
    """Run a backend once, forward and backward: some only infer, some take no float32 or not this device.

    Raises:
        ConfigError: it fails or gives no gradient.
    """
    from diffusers.models.attention_dispatch import (
        AttentionBackendName,
        _check_attention_backend_requirements,
        dispatch_attention_fn,
    )

    problem = None
    x = torch.randn(1, 64, 2, 64, device=device, dtype=dtype, requires_grad=True)
    try:
        _check_attention_backend_requirements(AttentionBackendName(name))
        dispatch_attention_fn(x, x, x, backend=AttentionBackendName(name)).float().sum().backward()
        if x.grad is None or not bool(torch.isfinite(x.grad).all()):
            problem = "it gives no gradient"
    except (RuntimeError, ValueError, ImportError, NotImplementedError, AttributeError) as error:
        problem = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    if problem is not None:
        raise ConfigError(
            f"model.attention {name!r} cannot be used on {device.type} in {str(dtype).removeprefix('torch.')}: "
            f"{problem.rstrip('.')}. Set model.attention: native."
        )


def compile_blocks(transformer: nn.Module) -> None:
    """Compile each of the transformer's repeated blocks in place; shapes may vary without a graph for each.

    Raises:
        ConfigError: diffusers names no repeated blocks for this transformer.
    """
    names = {name for kind in {type(module) for module in transformer.modules()} for name in _block_names(kind)}
    blocks = [module for module in transformer.modules() if type(module).__name__ in names]
    if not blocks:
        raise ConfigError(
            f"model.compile needs a transformer of repeated blocks. Got a {type(transformer).__name__}, which names "
            "none. Set it to false."
        )
    for block in blocks:
        block.compile(dynamic=True)


def _block_names(kind: type) -> tuple[str, ...]:
    """Class names of a diffusers model's repeated blocks."""
    return tuple(getattr(kind, "_repeated_blocks", None) or getattr(kind, "_no_split_modules", None) or ())
