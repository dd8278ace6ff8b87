"""CUDA's autocast on a CPU, against PyTorch's own on fake tensors of a CUDA device."""

from unittest.mock import patch

import pytest
import torch
import torch.nn.functional as F
from torch._subclasses.fake_tensor import FakeTensorMode

from diffrl.cost.cuda_rules import cuda_rules

CALLS = {
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "group_norm": lambda x: F.group_norm(x, 2),
    "softmax": lambda x: x.softmax(-1),
    "softmax of a dtype": lambda x: x.softmax(-1, dtype=torch.bfloat16),
    "sum": lambda x: x.sum(-1),
    "sum of all": lambda x: x.sum(),
    "cumsum": lambda x: x.cumsum(-1),
    "norm": lambda x: x.norm(dim=-1),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "pow": lambda x: x.pow(2),
    "rsqrt": lambda x: x.rsqrt(),
    "exp": lambda x: x.exp(),
    "mse_loss": lambda x: F.mse_loss(x, x),
    "mean": lambda x: x.mean(-1),
    "gelu": lambda x: F.gelu(x),
    "linear": lambda x: F.linear(x, x),
    "linear of float32": lambda x: F.linear(x.float(), x.float()),
    "bmm": lambda x: x[None].float() @ x[None].float().mT,
    "attention": lambda x: F.scaled_dot_product_attention(*[x.float()[None, None]] * 2, x[None, None]),
    "convolution": lambda x: F.conv1d(x.float()[None], x.float()[None]),
    "add": lambda x: x + 1,
    "add float32": lambda x: x + x.float(),
    "addcmul": lambda x: torch.addcmul(x, x.float(), x),
    "upsample": lambda x: F.interpolate(x[None], scale_factor=2),
    "view_as_complex": lambda x: torch.view_as_real(torch.view_as_complex(x.float().unflatten(-1, (-1, 2)))),
    "cat": lambda x: torch.cat([x, x.float()]),
}


def dtypes(device):
    found = {}
    with torch.autocast(device, torch.bfloat16):
        for name, call in CALLS.items():
            found[name] = call(torch.ones(4, 4, dtype=torch.bfloat16, device=device)).dtype
    return found


@pytest.fixture
def on_cuda():
    available = patch("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    with FakeTensorMode(), available, patch("torch.cuda.is_bf16_supported", lambda: True):
        return dtypes("cuda")


def test_every_dtype_is_cudas(on_cuda):
    with cuda_rules():
        assert dtypes("cpu") == on_cuda
    assert on_cuda["softmax"] == on_cuda["layer_norm"] == torch.float32


def test_the_numbers_and_gradients_are_float32s():
    x = torch.randn(3, 8, generator=torch.Generator().manual_seed(0)).bfloat16().requires_grad_()
    whole = x.detach().float().requires_grad_()
    F.layer_norm(whole, (8,)).softmax(-1).square().sum().backward()
    with cuda_rules(), torch.autocast("cpu", torch.bfloat16):
        F.layer_norm(x, (8,)).softmax(-1).square().sum().backward()
    torch.testing.assert_close(x.grad, whole.grad.bfloat16())


def test_without_autocast_and_afterwards_nothing_differs():
    x = torch.ones(4, 4, dtype=torch.bfloat16)
    before = dtypes("cpu")
    with cuda_rules():
        assert F.layer_norm(x, (4,)).dtype == torch.bfloat16
    assert dtypes("cpu") == before
