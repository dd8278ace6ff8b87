"""What adapters of diffusers pipelines share: loading, guidance, decoding, parts that rest on the CPU between uses.

Configurations read a family's facts from its file, so neither that nor this one imports torch before it is used.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

from diffrl.errors import ConfigError
from diffrl.models.adapter import Conditioning, DrawNoise, EditingAdapter, device_of
from diffrl.models.family import Family
from diffrl.models.files import read_object
from diffrl.models.latent_units import scaled, unscaled
from diffrl.models.schedulers import flow_sigmas
from reward_models.common.messages import show

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

    from diffrl.models.placement import Placement

EMPTY = "negative_"
"""Prefix of the conditioning of the negative prompt, for classifier-free guidance; it is empty unless one is given."""


class PipelineAdapter(ABC):
    """A diffusers pipeline as velocities over sigmas; a family adds how prompts are encoded and the network is called.

    Args:
        pipeline: the diffusers pipeline; its components are used, not copied.
        dtype: what the transformer computes in, whatever trainable weights are kept in.
        max_sequence_length: text tokens of a prompt; None takes the family's default.
    """

    family: ClassVar[Family]
    latent_shape: tuple[int, ...]
    """Of one sample's noise."""
    height: int
    width: int
    text_width: ClassVar[str] = "joint_attention_dim"
    """What the transformer's config calls the width of a prompt's embeddings."""

    def __init__(self, pipeline: Any, dtype: torch.dtype, max_sequence_length: int | None = None):
        from diffrl.models.placement import Placement

        self.pipeline = pipeline
        self.transformer: nn.Module = pipeline.transformer
        self.dtype = dtype
        self.max_sequence_length = max_sequence_length or self.family.max_sequence_length
        self.placement = Placement(device=device_of(self.transformer))
        self.autocast = False
        self.negative_prompt: Any = self.family.negative_prompt  # text where the network is asked for it
        _require_short_texts(pipeline)
        self._present: set[str] = set()
        self._empty: tuple[int, Conditioning] | None = None

    @classmethod
    def from_pretrained(
        cls, folder: Path, *, dtype: torch.dtype, placement: Placement, variant: str | None = None, **options: Any
    ) -> Self:
        """Load a diffusers folder; frozen parts in `dtype`, everything in eval mode, nothing trainable."""
        cls.family.require_packages()
        import diffusers
        from diffusers.utils.logging import disable_progress_bar
        from torch import nn
        from transformers.utils.logging import disable_progress_bar as disable_transformers_progress_bar

        from diffrl.models.networks import load_networks

        disable_progress_bar()
        disable_transformers_progress_bar()
        made = getattr(diffusers, read_object(folder / "model_index.json")["_class_name"])
        dtypes = {"vae": cls.vae_dtype(placement, dtype)}
        networks = load_networks(folder, made, dtype, variant, dtypes)
        pipeline = made.from_pretrained(
            str(folder), dtype={"default": dtype, **dtypes}, use_safetensors=True, **networks
        )
        pipeline.set_progress_bar_config(disable=True)
        for component in pipeline.components.values():
            if isinstance(component, nn.Module):
                component.requires_grad_(False).eval()
        adapter = cls(pipeline, dtype=dtype, **options)
        adapter.place(placement)
        return adapter

    @classmethod
    def vae_dtype(cls, placement: Placement, dtype: torch.dtype) -> torch.dtype:
        """Return what the decoder computes in: what was asked for, else what the family needs, else the pipeline's."""
        import torch

        needed = cls.family.vae_dtype
        return placement.vae_dtype or (dtype if needed is None else getattr(torch, needed))

    def place(self, placement: Placement) -> None:
        """Quantise the frozen transformer if asked for, and bring the components to where they belong.

        Raises:
            ConfigError: an attention backend that would stop at the first network call, or leave padding unmasked.
        """
        import torch

        from diffrl.models.base_precision import quantise_base
        from diffrl.models.placement import align, block_gradients, compile_blocks, set_attention, try_attention

        self.family.require_masks(placement.attention)
        self.placement = placement
        if placement.base_precision is not None:
            for module in self.trainable_modules().values():
                quantise_base(module, self.family.exclude, placement.base_precision, self.dtype)
        for name, component in self._modules("").items():
            component.to("cpu" if self._offloaded(name) else placement.device)
            if placement.device.type == "cpu":
                align(component)
        vae, vae_dtype = self.pipeline.vae, self.vae_dtype(placement, self.dtype)
        # A decoder of images keeps its channels last, as convolutions of CPUs and of tensor cores take them: else each
        # call copies its input over and back. Videos' weights have a fifth axis, for which that layout does not exist.
        flat = all(weight.ndim <= 4 for weight in vae.parameters())
        layout = torch.channels_last if flat else torch.preserve_format
        torch.nn.Module.to(vae, vae_dtype, memory_format=layout)  # diffusers' own `to` warns about a dtype
        if placement.vae_slicing:
            vae.enable_slicing()
        if placement.vae_tiling:
            vae.enable_tiling()
        if placement.attention is not None:
            set_attention(self.transformer, placement.attention)
            run = partial(block_gradients, self.transformer, self._call_once) if self._modules("text_encoder") else None
            try_attention(placement.attention, placement.device, self.dtype, run)
        if placement.compile:
            compile_blocks(self.transformer)

    def _call_once(self) -> None:
        """Predict one sample's velocity, of its real size; nothing is kept."""
        import torch

        latents = self.init_latents(lambda shape: torch.randn(1, *shape, generator=torch.Generator().manual_seed(0)))
        if isinstance(self, EditingAdapter):
            grey = torch.full((3, self.height, self.width), 128, dtype=torch.uint8)
            conditioning = self.encode_edits(["a circle"], [grey])
        else:
            conditioning = self.encode_prompts(["a circle"])
        self._empty = None
        self.velocity(latents, latents.new_ones(1), conditioning, 1.0)

    def train_whole(self) -> None:
        """Compute in `dtype` from now on though the transformer's weights become float32: autocast casts them."""
        import torch

        from diffrl.models.placement import keep_dtype

        self.autocast = self.dtype != torch.float32
        if self.autocast:
            keep_dtype(self.transformer)

    def _modules(self, prefix: str) -> dict[str, nn.Module]:
        """Return the components with weights whose names begin so."""
        from torch import nn

        parts = self.pipeline.components.items()
        return {name: part for name, part in parts if name.startswith(prefix) and isinstance(part, nn.Module)}

    def _offloaded(self, name: str) -> bool:
        kind = "text_encoders" if name.startswith(("text_encoder", "image_encoder")) else name
        return kind in self.placement.offload

    @contextmanager
    def on_device(self, prefix: str) -> Iterator[torch.device]:
        """Have frozen components of these names on the device, without gradients, until the block ends.

        Offloaded ones go back to the CPU afterwards. Within another such block for the same names nothing moves.
        """
        import torch

        outermost = prefix not in self._present
        resting = [part for name, part in self._modules(prefix).items() if outermost and self._offloaded(name)]
        self._present.add(prefix)
        for component in resting:
            component.to(self.placement.device)
        try:
            with torch.no_grad():
                yield self.placement.device
        finally:
            if outermost:
                self._present.discard(prefix)
            for component in resting:
                component.to("cpu")

    @abstractmethod
    def encode_prompts(self, prompts: Sequence[str]) -> Conditioning:
        """Encode prompts; tensors whose names begin with `EMPTY` are of the negative prompt, the same in every row."""

    def text_shapes(self, encoders: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
        """Return the shape of one row of each tensor of `encode_prompts`, the empty prompt's left out.

        Names that end in "mask" are Booleans, all others numbers. Plans and `diffrl doctor` draw such rows.

        Args:
            encoders: the configs of the pipeline's parts by name, as far as they are known.
        """
        length = self.max_sequence_length
        shapes: dict[str, tuple[int, ...]] = {
            "prompt_embeds": (length, self.pipeline.transformer.config[self.text_width])
        }
        return {**shapes, "mask": (length,)} if self.family.masks_prompts else shapes

    def source_shapes(self, encoders: Mapping[str, Mapping[str, Any]]) -> dict[str, tuple[int, ...]]:
        """Return the same of what `encode_edits` adds; nothing where no image is edited."""
        return {}

    @property
    def empty_prompt_cached(self) -> bool:
        """Whether the empty prompt has been encoded, as long as prompts are now: no encoder need read it again."""
        return self._empty is not None and self._empty[0] == self.max_sequence_length

    def with_empty(self, conditioning: Conditioning, empty: Mapping[str, Tensor | None]) -> Conditioning:
        """Return rows of B prompts, and beside them B rows of the empty prompt, which is encoded once.

        Args:
            conditioning: (B, ...) each, of the prompts.
            empty: the same names, any number of equal rows; not looked at where `empty_prompt_cached`.
        """
        if self._empty is None or not self.empty_prompt_cached:
            rows = {EMPTY + name: tensor[:1].clone() for name, tensor in empty.items() if tensor is not None}
            self._empty = (self.max_sequence_length, rows)
        count = len(next(iter(conditioning.values())))
        return {**conditioning, **{name: row.expand(count, *row.shape[1:]) for name, row in self._empty[1].items()}}

    def encode_beside_empty(
        self, prompts: Sequence[str], encode: Callable[[list[str]], Mapping[str, Tensor]]
    ) -> Conditioning:
        """Return `with_empty` of what `encode` makes of texts, (B, ...) each; the negative prompt is "" without one."""
        with self.on_device("text_encoder"):
            encoded = encode(list(prompts))
            return self.with_empty(encoded, {} if self.empty_prompt_cached else encode([self.negative_prompt or ""]))

    @abstractmethod
    def predict(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Call the network once: latents (B, ...) in `dtype`, sigma (B,) float32, conditioning less the empty prompt's.

        Numbers of the conditioning are in `dtype` too. As in the stock pipeline there is no autocast, unless all of
        the network's weights are trained.
        """

    def init_latents(self, draw: DrawNoise) -> Tensor:
        """Return unit normal latents (B, *latent_shape) float32."""
        return draw(self.latent_shape).float().to(self.placement.device)

    def sigmas(self, steps: int) -> Tensor:
        """Return the scheduler's levels, its shift included; see `flow_sigmas`."""
        return flow_sigmas(self.pipeline.scheduler, steps)

    def velocity(self, latents: Tensor, sigma: Tensor, conditioning: Conditioning, guidance_scale: float) -> Tensor:
        """Return the velocity; classifier-free guidance above 1 evaluates the empty prompt in the same call."""
        import torch

        inputs = {name: tensor for name, tensor in conditioning.items() if not name.startswith(EMPTY)}
        guided = self.calls_per_step(guidance_scale) == 2
        if guided:
            # What has no half of the empty prompt, such as an image to edit, stands beside it as well.
            inputs = {
                name: torch.cat([conditioning.get(EMPTY + name, tensor), tensor]) for name, tensor in inputs.items()
            }
            latents, sigma = torch.cat([latents, latents]), torch.cat([sigma, sigma])
        inputs = {
            name: tensor.to(self.dtype) if tensor.is_floating_point() else tensor for name, tensor in inputs.items()
        }
        with torch.autocast(latents.device.type, dtype=self.dtype, enabled=self.autocast):
            output = self.predict(latents.to(self.dtype), sigma, inputs, guidance_scale)
        if not guided:
            return output.float()
        return self.guide(*output.float().chunk(2), guidance_scale)

    def calls_per_step(self, guidance_scale: float) -> int:
        """Return network evaluations that one step of one sample takes."""
        return self.family.calls_per_step(guidance_scale)

    def guide(self, unconditional: Tensor, conditional: Tensor, guidance_scale: float) -> Tensor:
        """Return classifier-free guidance (Ho and Salimans, arXiv 2207.12598)."""
        return unconditional + guidance_scale * (conditional - unconditional)

    def decode(self, latents: Tensor) -> Tensor:
        """Decode to images (B, 3, H, W), or videos (B, F, 3, H, W), uint8."""
        from diffrl.models.images import uint8_from_signed

        decoded = self.vae_output(unscaled(self.unpack(latents), self.pipeline.vae.config))
        if decoded.ndim == 5:  # a decoder of videos gives (B, 3, F, H, W)
            decoded = decoded.transpose(1, 2) if self.family.media == "video" else decoded[:, :, 0]
        return uint8_from_signed(decoded)

    def unpack(self, latents: Tensor) -> Tensor:
        """Return latents as the decoder takes them: here, as they are."""
        return latents

    def pack(self, latents: Tensor) -> Tensor:
        """Return latents as the network draws them, the inverse of `unpack`: here, as they are."""
        return latents

    def encode_media(self, media: Tensor) -> Tensor:
        """Return the latents at sigma = 0 that `decode` makes given images of, the mode of the encoder's distribution.

        Args:
            media: (B, 3, H, W) or, of videos, (B, F, 3, H, W), uint8 RGB of the size that is drawn.

        Returns:
            (B, ...) float32.
        """
        vae = self.pipeline.vae
        pixels = media.float() / 127.5 - 1.0
        if media.ndim == 5:
            pixels = pixels.transpose(1, 2)
        elif any(weight.ndim == 5 for weight in vae.parameters()):  # an encoder of videos takes images as one frame
            pixels = pixels.unsqueeze(2)
        with self.on_device("vae") as device:
            encoded = vae.encode(self.vae_input(pixels).to(device, vae.dtype))
        latents: Tensor = encoded.latent_dist.mode() if "latent_dist" in encoded else encoded.latent
        return self.pack(scaled(latents.float(), vae.config)).to(self.placement.device)

    def vae_input(self, pixels: Tensor) -> Tensor:
        """Return what the encoder takes of images in [-1, 1]: here, the images."""
        return pixels

    def vae_output(self, latents: Tensor) -> Tensor:
        """Return what the decoder makes of latents in its own units: in [-1, 1], on the device."""
        vae = self.pipeline.vae
        with self.on_device("vae") as device:
            decoded: Tensor = vae.decode(latents.to(device, vae.dtype), return_dict=False)[0]
        return decoded

    def stock_preparation(self) -> str:
        """Return lines of Python by which a program makes the stock pipeline draw what is drawn here; usually none."""
        return ""

    def trainable_modules(self) -> Mapping[str, nn.Module]:
        """Return the transformer alone."""
        return {"transformer": self.transformer}

    @classmethod
    def options(cls) -> tuple[str, ...]:
        """Return what a pipeline's own settings file may hold."""
        return tuple(name for name in inspect.signature(cls).parameters if name not in ("pipeline", "dtype"))


def keep_on_device(adapter: Any, prefix: str) -> AbstractContextManager[Any]:
    """Keep offloaded components of these names on the device until the block ends; other adapters have none."""
    return adapter.on_device(prefix) if isinstance(adapter, PipelineAdapter) else nullcontext()


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


def require_frames(frames: int, period: int) -> None:
    """Refuse a length that a decoder of videos does not draw: each latent frame but the first is `period` frames.

    Raises:
        ConfigError: names the rule.
    """
    if frames % period != 1 % period:
        raise ConfigError(
            f"model.frames must be a multiple of {period}, plus 1. Got {frames}. Take {frames // period * period + 1}."
        )


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
