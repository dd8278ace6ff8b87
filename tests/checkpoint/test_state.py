"""An optimiser's state and the generators' through a checkpoint, bit for bit."""

import json
import random

import numpy as np
import pytest
import torch
from torch import nn

from diffrl.checkpoint.files import load_checkpoint, save_checkpoint
from diffrl.checkpoint.state import optimizer_tensors, require_optimizer, restore_optimizer, restore_rng, rng_state
from diffrl.errors import CheckpointError
from diffrl.training.optim import make_optimizer


def network(dtype=torch.float32, width=5):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, width), nn.Linear(width, 2)).to(dtype)


def train(model, optimizer, steps, scheduler=None):
    for step in steps:
        inputs = torch.randn(7, 3, generator=torch.Generator().manual_seed(step)).to(next(model.parameters()).dtype)
        model(inputs).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if scheduler:
            scheduler.step()


def through_disk(tmp_path, optimizer):
    tensors, state = optimizer_tensors(optimizer)
    loaded = load_checkpoint(save_checkpoint(tmp_path, 1, {"optimizer": tensors}, {"optimizer": state}))
    return loaded.tensors["optimizer"], loaded.state["optimizer"]


OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, betas=(0.8, 0.97), weight_decay=0.1),
    "fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "tensor lr": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2), foreach=False),
    "two groups": lambda p: torch.optim.AdamW([{"params": p[:1], "lr": 0.1}, {"params": p[1:], "name": "x"}], lr=1e-2),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-2, momentum=0.9),
}


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_an_optimizer_goes_on_as_if_never_interrupted(tmp_path, kind):
    def build():
        model = network()
        optimizer = OPTIMIZERS[kind](list(model.parameters()))
        return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    straight, optimizer, scheduler = build()
    train(straight, optimizer, range(7), scheduler)

    first, optimizer, scheduler = build()
    train(first, optimizer, range(4), scheduler)
    tensors, state = through_disk(tmp_path, optimizer)
    saved = {name: tensor.clone() for name, tensor in tensors.items()}

    second, optimizer, later = build()
    second.load_state_dict(first.state_dict())
    restore_optimizer(optimizer, tensors, state)
    later.load_state_dict(scheduler.state_dict())
    train(second, optimizer, range(4, 7), later)
    for a, b in zip(straight.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)
    assert all(torch.equal(tensors[name], saved[name]) for name in saved)  # training on does not touch the checkpoint


def test_eight_bit_adam_goes_on_as_if_never_interrupted(tmp_path):
    """bitsandbytes gives its state in another layout than it keeps it in; what is small it keeps in float32."""
    pytest.importorskip("bitsandbytes")

    def build():
        model = network(width=4099)
        return model, make_optimizer(list(model.parameters()), "adamw_8bit", 1e-2, (0.8, 0.97), 1e-8, 0.1)

    straight, optimizer = build()
    train(straight, optimizer, range(7))
    first, optimizer = build()
    train(first, optimizer, range(4))
    kinds = {state["state1"].dtype for state in optimizer.state.values()}
    assert kinds == {torch.uint8, torch.float32}
    tensors, state = through_disk(tmp_path, optimizer)
    second, resumed = build()
    second.load_state_dict(first.state_dict())
    require_optimizer(resumed, tensors, state)
    restore_optimizer(resumed, tensors, state)
    for before, after in zip(optimizer.state.values(), resumed.state.values(), strict=True):
        assert before.keys() == after.keys()
        same = [torch.equal(a, after[k]) if isinstance(a, torch.Tensor) else a == after[k] for k, a in before.items()]
        assert all(same)
    train(second, resumed, range(4, 7))
    for a, b in zip(straight.parameters(), second.parameters(), strict=True):
        assert torch.equal(a, b)


class Wrapping(torch.optim.SGD):
    """An optimizer whose state_dict() has another layout than its state, and whose loading casts all the same."""

    def state_dict(self):
        saved = super().state_dict()
        return {**saved, "state": {index: {"wrapped": [dict(entry)]} for index, entry in saved["state"].items()}}

    def load_state_dict(self, state):
        super().load_state_dict({**state, "state": {i: entry["wrapped"][0] for i, entry in state["state"].items()}})


def test_casts_are_undone_whatever_the_layout(tmp_path):
    model = network(torch.bfloat16)
    optimizer = Wrapping(model.parameters(), lr=1e-2, momentum=0.9)
    train(model, optimizer, range(2))
    for entry in optimizer.state.values():
        entry |= {"kept": torch.randn(5), "name": "absmax"}
    restored = Wrapping(network(torch.bfloat16).parameters(), lr=1e-2, momentum=0.9)
    restore_optimizer(restored, *through_disk(tmp_path, optimizer))
    for before, after in zip(optimizer.state.values(), restored.state.values(), strict=True):
        assert after["kept"].dtype == torch.float32 and torch.equal(before["kept"], after["kept"])
        assert after["name"] == "absmax" and after["momentum_buffer"].dtype == torch.bfloat16


def test_optimizer_state_keeps_its_types_and_extra_values(tmp_path):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters(), betas=(0.8, 0.97))
    train(model, optimizer, range(2))
    weight = next(model.parameters())
    extra = {"name": "absmax", "nested": {"a.b": torch.arange(3), 7: (1, [2.5, None])}, "codes": torch.arange(5).byte()}
    optimizer.state[weight].update(extra)
    optimizer.param_groups[0]["note"] = ("x", True)
    restored = torch.optim.AdamW(network().parameters())
    restore_optimizer(restored, *through_disk(tmp_path, optimizer))
    group = restored.param_groups[0]
    assert group["betas"] == (0.8, 0.97) and isinstance(group["betas"], tuple) and group["note"] == ("x", True)
    state = restored.state[group["params"][0]]
    assert state["step"] == 2 and state["step"].dtype == torch.float32
    assert state["name"] == "absmax" and state["nested"][7] == (1, [2.5, None])
    assert torch.equal(state["nested"]["a.b"], torch.arange(3))


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: torch.optim.AdamW(nn.Linear(3, 5).parameters()), "parameter 2 of group 0 is .* absent here"),
        (
            lambda: torch.optim.AdamW(nn.Sequential(nn.Linear(3, 5), nn.Linear(5, 7)).parameters()),
            r"\[2, 5\].*\[7, 5\]",
        ),
        (lambda: torch.optim.AdamW([{"params": [p]} for p in network().parameters()]), "group"),
        (lambda: torch.optim.SGD(network().parameters()), "AdamW there and SGD here"),
    ],
)
def test_the_state_of_other_parameters_is_refused(tmp_path, other, message):
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    train(model, optimizer, range(2))
    target = other()
    before = json.dumps(optimizer_tensors(target)[1])
    with pytest.raises(CheckpointError, match=message):
        restore_optimizer(target, *through_disk(tmp_path, optimizer))
    assert json.dumps(optimizer_tensors(target)[1]) == before


def draw():
    np.random.normal()
    return random.random(), random.gauss(0, 1), np.random.normal(), np.random.rand(), torch.randn(17).tolist()


def test_generators_go_on_where_they_were(tmp_path):
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    draw()
    tensors, state = rng_state()
    loaded = load_checkpoint(save_checkpoint(tmp_path, 1, {"rng": tensors}, {"rng": state}))
    expected = draw()
    assert draw() != expected
    restore_rng(loaded.tensors["rng"], loaded.state["rng"])
    assert draw() == expected
