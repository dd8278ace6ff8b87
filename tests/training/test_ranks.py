"""Ranks with unequal shares take the gradient of one process. Ranks are threads here, an exchange is a barrier."""

import copy
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch
from torch import nn

from diffrl.distributed.ranks import Ranks
from diffrl.objectives.base import Objective
from diffrl.objectives.examples import States
from diffrl.training.gradient import LossTerm, accumulate_gradient
from tests.patience import LONG


class Threads:
    """Ranks that are threads."""

    def __init__(self, count):
        self.count, self.barrier = count, threading.Barrier(count, timeout=LONG)
        self.brought = [None] * count

    def exchange(self, rank, value):
        self.brought[rank] = value.clone()
        self.barrier.wait()
        found = torch.stack(self.brought)
        self.barrier.wait()
        return found

    def of(self, rank):
        control = SimpleNamespace(
            sum=lambda values: self.exchange(rank, values).sum(0),
            gather=lambda rows: self.exchange(rank, rows).flatten(0, 1),
        )

        def reduce(gradient, reduction):
            assert reduction == "mean"  # the device's backend carries gradients and nothing else
            return self.exchange(rank, gradient).mean(0)

        ranks = SimpleNamespace(reduce=reduce, no_sync=lambda network: nullcontext())
        return Ranks(None, self.count, rank, control, ranks)


@dataclass
class Squares(Objective[States]):
    """Mean square of the velocity, times a number of each unit."""

    measures: ClassVar = ("size",)
    factor: float

    def loss(self, examples, policy, reference):
        loss = self.factor * policy(*examples.start).square().flatten(1).mean(1)
        return loss, {"size": loss.detach()}


def gradient_of(ranks, network, shares, micro_batch):
    """One accumulated gradient of a small network, whose ranks are averaged by hand."""
    network = copy.deepcopy(network)
    policy = SimpleNamespace(
        parameters=dict(network.named_parameters()), alternates=True, adapter=SimpleNamespace(transformer=network)
    )
    found = accumulate_gradient(
        ranks, policy, shares, [lambda x, sigma, prompt: network(x)] * len(shares), None, micro_batch
    )
    return found, torch.cat([p.grad.flatten() for p in network.parameters()])


def examples_of(rows):
    numbers = torch.arange(len(rows))
    return States(rows, torch.ones(len(rows)), numbers, torch.ones(len(rows), dtype=torch.bool))


@pytest.mark.parametrize("sizes", [(7, 3), (5, 0, 2)])
@pytest.mark.parametrize("micro_batch", [2, 16])
def test_the_gradient_is_that_of_one_process(sizes, micro_batch):
    rows = torch.randn(sum(sizes), 3, generator=torch.Generator().manual_seed(1))
    network = nn.Linear(3, 3)
    terms = [LossTerm(Squares(1.0), 0.7), LossTerm(Squares(-3.0), 1.3)]

    def shares(own):
        return [(term, examples_of(own), torch.arange(len(own))) for term in terms]

    alone, expected = gradient_of(Ranks(), network, shares(rows), micro_batch)
    ranks, parts, results = Threads(len(sizes)), rows.split(sizes), [None] * len(sizes)

    def work(rank):
        try:
            results[rank] = gradient_of(ranks.of(rank), network, shares(parts[rank]), micro_batch)
        except BaseException:
            ranks.barrier.abort()
            raise

    threads = [threading.Thread(target=work, args=(rank,)) for rank in range(len(sizes))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * LONG)
    for found, gradient in results:
        torch.testing.assert_close(gradient, expected, rtol=1e-5, atol=1e-6)
        assert found.loss == pytest.approx(alone.loss, rel=1e-6)
        assert found.metrics == pytest.approx(alone.metrics, rel=1e-6)
