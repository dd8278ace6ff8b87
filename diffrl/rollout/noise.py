"""Noise as a pure function of its address (`address.Address`), the noise that siblings share, and random choices.

A 128-bit hash of the address keys numpy's counter-based Philox generator, one generator an address. So a row does not
depend on the batch, the rank, the device or the process that draws it. It does depend on numpy's ziggurat, which numpy
may change between versions; a test pins today's values.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from diffrl.rollout.address import Address, Purpose

_DOMAIN = b"diffrl.noise.v1"  # at most 16 bytes; a change gives every address other noise


def noise_at(addresses: Sequence[Address], shape: tuple[int, ...]) -> Tensor:
    """Return unit normal noise of B addresses.

    Shapes with equally many numbers hold the same numbers in row-major order.

    Args:
        addresses: B addresses, in any order; equal ones get equal noise.
        shape: shape of one latent, without the batch.

    Returns:
        (B, *shape) float32, on the CPU.

    Raises:
        struct.error: a field of an address is not an integer of at most 64 bits.
    """
    noise = torch.empty(len(addresses), math.prod(shape), dtype=torch.float32)  # aligned, as NumPy's own need not be
    for row, address in zip(noise.numpy(), addresses, strict=True):
        generator = np.random.Generator(np.random.Philox(key=_key(address)))
        generator.standard_normal(dtype=np.float32, out=row)
    return noise.reshape(len(addresses), *shape)


def prefetch(draws: Sequence[Callable[[], Tensor]]) -> Iterator[Tensor]:
    """Yield what some functions draw, in their order, each on a thread of its own while what came before it is used.

    A generator of noise leaves Python's lock to others, and a host that sends work to a device mostly waits. Nothing is
    drawn more than one ahead. The first is begun at once, not when it is asked for.
    """
    if not draws:
        return iter(())
    pool = ThreadPoolExecutor(1, "noise")
    first = pool.submit(draws[0])

    def taken() -> Iterator[Tensor]:
        pending = first
        for draw in draws[1:]:
            noise = pending.result()
            pending = pool.submit(draw)
            yield noise
        pool.shutdown(wait=False)
        yield pending.result()

    return taken()


def generator_at(seed: int, iteration: int, group: int, purpose: Purpose) -> np.random.Generator:
    """Return a generator for choices about one group: a pure function of what it is for, so the same on every rank.

    Args:
        seed: the run's seed.
        iteration: the training iteration, from 0.
        group: the group id: one slot of the iteration's global batch.
        purpose: what is chosen.
    """
    return np.random.default_rng([seed, iteration, group, *purpose.value])


def sibling_noise(shared: Tensor, own: Tensor, c: float) -> Tensor:
    """Return noise of a tree's siblings: unit variance for each, correlation 1 / (1 + c^2) between any two.

        xi_k = (xi_shared + c * xi_own_k) / sqrt(1 + c^2)

    After BranchGRPO, arXiv 2509.06040, whose code lacks the normalisation. Each child keeps the marginal of its step,
    so the step's density stays right.

    Args:
        shared: (B, ...) unit normal noise, the same for all siblings.
        own: (B, ...) unit normal noise, one for each sibling.
        c: weight of the child's own noise, at least 0. 0 makes siblings equal; infinity gives `own` itself.

    Returns:
        (B, ...) in the inputs' dtype.

    Raises:
        ValueError: `c` is negative or NaN.
    """
    if not c >= 0:
        raise ValueError(f"c must be at least 0. Got {c}.")
    if math.isinf(c):
        return own
    scale = math.hypot(1.0, c)
    return shared * (1.0 / scale) + own * (c / scale)


def _key(address: Address) -> int:
    """Return 128-bit hash of an address, equal on every platform."""
    stream, path = address.stream.encode(), address.path
    # Little-endian throughout, and both parts of variable length carry their length: no two addresses pack alike.
    packed = struct.pack(
        f"<q{len(stream)}sqqqqq{len(path)}q",
        len(stream),
        stream,
        address.seed,
        address.iteration,
        address.group,
        address.root,
        len(path),
        *path,
    )
    return int.from_bytes(hashlib.blake2b(packed, digest_size=16, person=_DOMAIN).digest(), "little")
