"""Random numbers and distances that the tests of precisions share."""

import torch


def random(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def relative(one, other):
    return float((one.float() - other.float()).norm() / other.float().norm())
