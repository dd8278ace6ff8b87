"""Blocks of a kind share graphs, none is left out in silence, and copies and references have graphs of their own."""

import copy
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

from diffrl.models.placement import compile_blocks
from diffrl.precision import compiled
from diffrl.precision.compiled import compile_network, compiled_blocks
from diffrl.training.loop import Trainer


class Block(nn.Module):
    """Differs from its like by a factor; breaks its graph if it is told so."""

    def __init__(self, factor=1, breaks=False):
        super().__init__()
        self.linear, self.factor, self.breaks, self.disabled = nn.Linear(3, 3), factor, breaks, False

    def forward(self, x):
        if self.breaks:
            torch._dynamo.graph_break()
        return x + self.linear(x) * (0 if self.disabled else self.factor)


class Network(nn.Module):
    _repeated_blocks = ["Block"]

    def __init__(self, *blocks):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x


def identity(graph, inputs):
    return graph.forward


@pytest.fixture(autouse=True)
def forget():
    torch._dynamo.reset()
    counters.clear()
    yield
    torch._dynamo.reset()


def call(network, batch=5, gradient=False):
    with torch.set_grad_enabled(gradient):
        return network(torch.randn(batch, 3, generator=torch.Generator().manual_seed(batch)))


def test_blocks_of_a_kind_share_a_graph_for_all_batches():
    network = Network(*(Block() for _ in range(7)))
    plain = copy.deepcopy(network)
    blocks = compile_network(network, identity)
    for batch in (5, 3, 11):
        torch.testing.assert_close(call(network, batch), call(plain, batch))
    assert blocks.graphs == 1 and not blocks.missed and compiled_blocks(plain) is None
    call(network, 1)
    call(network, gradient=True)
    assert blocks.graphs == 4  # the first block's input needs no gradient, that of the others does


def test_more_kinds_of_use_than_dynamo_would_compile():
    """Four blocks that differ, with and without gradients, one or many: sixteen graphs, where eight is usual."""
    network = Network(*(Block(factor) for factor in (2, 3, 5, 7)))
    blocks = compile_network(network, identity)
    for gradient in (False, True):
        for batch in (5, 1):
            call(network, batch, gradient)
    assert blocks.graphs == 16 and not blocks.missed and not counters["unimplemented"]
    assert torch._dynamo.config.recompile_limit == 8  # the user's own functions keep theirs


def test_a_reference_has_graphs_of_its_own(monkeypatch):
    monkeypatch.setattr(compiled, "GRAPHS", 2)
    network = Network(Block())
    blocks = compile_network(network, identity)
    call(network), call(network, 1)
    network.blocks[0].disabled = True
    with blocks.of_reference():
        x = call(network)
        call(network, 1)
    assert torch.equal(x, torch.randn(5, 3, generator=torch.Generator().manual_seed(5)))
    assert blocks.graphs == 4 and not blocks.missed


@pytest.mark.parametrize("why", ["graph_break", "recompile_limit"])
def test_what_is_left_out_is_told_once(monkeypatch, why):
    if why == "recompile_limit":
        monkeypatch.setattr(compiled, "GRAPHS", 1)
    network = Network(Block(breaks=why == "graph_break"), Block(2))
    blocks = compile_network(network, identity)
    for batch in (5, 1, 5):
        call(network, batch)
    assert len(blocks.missed) == 1 and why in blocks.missed[0]
    told = []
    policy = SimpleNamespace(networks=lambda: [network])
    trainer = SimpleNamespace(
        session=SimpleNamespace(policy=policy), messages=SimpleNamespace(report=told.append), _missed=0
    )
    metrics = [Trainer.compilation(trainer) for _ in range(2)]
    assert len(told) == 1 and told[0].startswith("model.compile left a part of the blocks uncompiled")
    assert metrics == [{"compile/graphs": blocks.graphs, "compile/missed": 1}] * 2


def test_what_must_be_whole_raises(monkeypatch):
    monkeypatch.setattr(compiled, "GRAPHS", 1)
    network = Network(Block(2), Block(3))
    compile_network(network, identity, whole=True)
    with pytest.raises(Exception, match="fullgraph=True"):
        call(network)


def test_the_blocks_of_a_model_are_compiled_where_it_names_them():
    network = Network(Block(), Block())
    compile_blocks(network)
    assert compiled_blocks(network) is not None and all(block._compiled_call_impl for block in network.blocks)
    assert network._compiled_call_impl is None
