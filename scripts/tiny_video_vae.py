"""Train the autoencoder of the tiny Wan pipeline: pictures first, then clips, as its makers did.

A picture costs a tenth of a clip, and colour and form can be learnt from pictures. The layers are then set to repeat
what they see through time, and clips teach them motion. Called by `scripts/build_tiny_video_pipeline.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

import torch
import torch.nn.functional as F
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import WanCausalConv3d
from tiny_builder import warmup_cosine
from torch import Tensor, nn

PICTURE_BATCH = 16
CLIP_BATCH = 8
WARMUP = 50

LogStep = Callable[[int, int, Tensor], None]


class Muon(torch.optim.Optimizer):
    """Momentum whose every step is brought near to an orthogonal matrix (Jordan et al. 2024, quintic Newton-Schulz).

    For weights of at least two dimensions; a convolution counts as the matrix (out, in x taps). On this autoencoder it
    needs a quarter of the steps that AdamW needs. `torch.optim.Muon` takes matrices only.
    """

    def __init__(self, parameters: Iterable[nn.Parameter], lr: float, momentum: float = 0.95):
        super().__init__(parameters, {"lr": lr, "momentum": momentum})

    @torch.no_grad()
    def step(self) -> None:  # type: ignore[override]
        """Update all parameters that have a gradient."""
        for group in self.param_groups:
            for weight in (p for p in group["params"] if p.grad is not None):
                mean = self.state[weight].setdefault("mean", torch.zeros_like(weight))
                mean.lerp_(weight.grad, 1 - group["momentum"])
                ahead = weight.grad.lerp(mean, group["momentum"]).flatten(1)
                rows, columns = ahead.shape
                change = orthogonalised(ahead).reshape(weight.shape)
                weight.add_(change, alpha=-group["lr"] * max(1.0, rows / columns) ** 0.5)


def orthogonalised(matrix: Tensor) -> Tensor:
    """Return nearly U V^T of the matrix's singular value decomposition, by five steps of the quintic iteration."""
    if matrix.shape[0] > matrix.shape[1]:
        return orthogonalised(matrix.T).T
    result = matrix / (matrix.norm() + 1e-9)
    for _ in range(5):
        gram = result @ result.T
        result = 3.4445 * result + (-4.7750 * gram + 2.0315 * gram @ gram) @ result
    return result


def train_vae(vae: AutoencoderKLWan, clips: Tensor, steps: tuple[int, int], seed: int, log: LogStep) -> None:
    """Train on `steps[0]` batches of pictures and `steps[1]` batches of clips; `clips` uint8 (N, F, 3, H, W)."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():  # a narrow posterior: unit noise on the untrained latents would drown them
        vae.quant_conv.bias[vae.config.z_dim :] = -6.0  # log-variance
    convolutions = [module for module in vae.modules() if isinstance(module, WanCausalConv3d)]
    for module in convolutions:
        module.forward = partial(_convolve_picture, module)  # type: ignore[method-assign]
    _fit(vae, clips.flatten(0, 1)[:, None], PICTURE_BATCH, steps[0], generator, log)
    for module in convolutions:
        del module.forward
    repeat_through_time(vae)
    _fit(vae, clips, CLIP_BATCH, steps[1], generator, log)


def to_unit(clips: Tensor) -> Tensor:
    """Return uint8 clips (N, F, 3, H, W) as the autoencoder takes them: float32 (N, 3, F, H, W) in [-1, 1]."""
    return clips.transpose(1, 2).float() / 127.5 - 1


def _fit(
    vae: AutoencoderKLWan, clips: Tensor, batch: int, steps: int, generator: torch.Generator, log: LogStep
) -> None:
    """Train on L1 + squared error with a light KL term.

    What is not background counts nine times: it is a tenth of the picture, and its colour and form are learnt last.
    """
    matrices = [p for p in vae.parameters() if p.ndim >= 4 and min(p.shape[0], p[0].numel()) > 4]
    chosen = {id(p) for p in matrices}
    others = [p for p in vae.parameters() if id(p) not in chosen]
    optimizers = [Muon(matrices, lr=0.02), torch.optim.AdamW(others, lr=2e-3, betas=(0.9, 0.99), weight_decay=0.0)]
    schedules = [
        torch.optim.lr_scheduler.LambdaLR(optimizer, lambda i: warmup_cosine(i, WARMUP, steps))
        for optimizer in optimizers
    ]
    for step in range(1, steps + 1):
        videos = to_unit(clips[torch.randint(len(clips), (batch,), generator=generator)]).to(vae.device)
        posterior = vae.encode(videos).latent_dist
        noise = torch.randn(posterior.mean.shape, generator=generator).to(vae.device)
        error = vae.decode(posterior.mean + posterior.std * noise).sample - videos
        foreground = (videos - videos[:, :, :1, :1, :1]).abs().amax(1, keepdim=True) > 0.05
        kl = posterior.kl().mean() / posterior.mean[0].numel()
        loss = ((1 + 8 * foreground) * (error.abs() + error.square())).mean() + 2e-5 * kl
        vae.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        for stepper in (*optimizers, *schedules):
            stepper.step()
        log(step, steps, loss)


def _convolve_picture(module: WanCausalConv3d, x: Tensor, cache_x: Tensor | None = None) -> Tensor:
    """Return what the causal convolution gives for a single frame: only its last tap in time sees anything."""
    left, top = module._padding[0], module._padding[2]
    weight = module.weight[:, :, -1]
    return F.conv2d(x[:, :, 0], weight, module.bias, module.stride[1:], (top, left))[:, :, None]


@torch.no_grad()
def repeat_through_time(vae: AutoencoderKLWan) -> None:
    """Blind all convolutions to earlier frames; resampling in time takes or repeats the present one."""
    for name, module in vae.named_modules():
        if isinstance(module, WanCausalConv3d):
            module.weight[:, :, :-1] = 0
            if name.endswith("time_conv"):
                copies = module.out_channels // module.in_channels
                module.weight[:, :, -1, 0, 0] = torch.eye(module.in_channels).repeat(copies, 1)
                module.bias.zero_()
