"""Ranks with unequal work meet in every exchange. Ranks are threads here, an exchange a barrier that notes who came."""

import threading

import pytest
import torch
from torch import nn

from diffrl.distributed.lockstep import Lockstep
from tests.patience import LONG


class Ranks:
    """Two threads; `meet` is a collective operation: both must come to it with the same thing in mind."""

    def __init__(self):
        self.barrier = threading.Barrier(2, timeout=LONG)
        self.brought = [None, None]
        self.met = []
        self.of = threading.local()

    def meet(self, what):
        self.brought[self.of.rank] = what
        if self.barrier.wait() == 0:
            self.met.append(tuple(self.brought))
        self.barrier.wait()

    def most(self, number):
        self.meet(("vote", number))
        votes = [vote for _, vote in self.met[-1]]
        return max(votes), min(votes)

    def run(self, work):
        """`work(rank)` on both; their results or what they raised."""
        outcomes = [None, None]

        def body(rank):
            self.of.rank = rank
            try:
                outcomes[rank] = work(rank)
            except Exception as error:
                outcomes[rank] = error
                if isinstance(error, threading.BrokenBarrierError):
                    self.barrier.abort()

        threads = [threading.Thread(target=body, args=(rank,)) for rank in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * LONG)
        return outcomes


class Group(nn.Module):
    """A group of weights as FSDP2 makes it: gathered by all ranks in each call, or by hand."""

    def __init__(self, name, ranks, inner=()):
        super().__init__()
        self.label, self.ranks, self.inner = name, ranks, nn.ModuleList(inner)
        self.computed = 0
        self.register_forward_pre_hook(lambda *_: self.unshard(), prepend=True)

    def forward(self, x):
        self.computed += 1
        for block in reversed(self.inner):  # not the order in which they are registered
            x = block(x)
        return x + 1

    def unshard(self):
        self.ranks.meet(self.label)

    def reshard(self):
        pass


def networks(ranks):
    return [Group(name, ranks, [Group(f"{name}{i}", ranks) for i in range(2)]) for name in "AB"]


def test_unequal_numbers_of_calls_meet_in_every_gather():
    ranks = Ranks()
    own = [networks(ranks), networks(ranks)]
    plan = [["A", "B", "A", "A", "B"], ["A", "B"]]  # both call each network at least once, in an order of their own
    x = torch.zeros(3)

    def work(rank):
        a, b = own[rank]
        step = Lockstep([a, b], ranks.most)
        for name in plan[rank]:
            assert {"A": a, "B": b}[name](x).eq(3).all()
        step.settle()
        if rank == 1:
            for _ in range(3):
                a(x)
        step.settle()
        return a.computed, b.computed

    assert ranks.run(work) == [(3, 2), (4, 1)]
    gathers = [met for met in ranks.met if isinstance(met[0], str)]
    assert all(one == other for one, other in gathers)
    assert [one for one, _ in gathers].count("A") == 6 and [one for one, _ in gathers].count("B1") == 2
    assert all(type(one) is type(other) for one, other in ranks.met)


def test_a_rank_may_want_another_network_than_the_others():
    ranks = Ranks()
    own = [networks(ranks), networks(ranks)]
    x = torch.zeros(3)

    def work(rank):
        a, b = own[rank]
        step = Lockstep([a, b], ranks.most)
        a(x), b(x)
        (a if rank else b)(x)
        step.settle()
        return a.computed, b.computed

    assert ranks.run(work) == [(1, 2), (2, 1)]
    assert all(one == other for one, other in ranks.met if isinstance(one, str))


def test_in_an_update_a_difference_is_an_error_on_every_rank():
    ranks = Ranks()
    own = [networks(ranks), networks(ranks)]
    x = torch.zeros(3)

    def work(rank):
        a, b = own[rank]
        step = Lockstep([a, b], ranks.most)
        a(x)
        with step.equal_calls():
            a(x)
            if rank:
                a(x)
            step.settle()

    outcomes = ranks.run(work)
    assert all(isinstance(error, RuntimeError) and "same sharded networks" in str(error) for error in outcomes)


def test_a_rank_that_never_called_cannot_serve():
    ranks = Ranks()
    own = [networks(ranks), networks(ranks)]

    def work(rank):
        step = Lockstep(own[rank], ranks.most)
        if rank:
            own[rank][0](torch.zeros(3))
        try:
            step.settle()
        finally:
            ranks.barrier.abort()  # the other would wait for a gather to which nobody comes

    with pytest.raises(RuntimeError, match="must have called"):
        raise ranks.run(work)[0]
