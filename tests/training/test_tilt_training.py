"""Tree tilt in the loop: what an iteration trains on, the gate before it, and runs that go on."""

import pytest
import torch

import diffrl.training.update as update
from diffrl.errors import GuardStop
from diffrl.functional.covariance import between_variance
from diffrl.models.loading import load_adapter
from diffrl.objectives.tilt import split_origins
from diffrl.rollout.denoise import velocity_of
from diffrl.training.loop import Trainer
from tests.run.test_resume import assert_same_run, crashing
from tests.training.harness import (
    FOREST,
    distance,
    flat,
    go_on,
    make_run,
    make_trainer,
    record_gradients,
    settings,
    start,
    weights_of,
)
from tests.training.test_on_policy import guidance_in_the_update_only, shifted_density

UNEVEN = FOREST | {"tree": {"roots": 2, "splits": [0, 2], "branches": [3, 2], "correlation": None}}


def tilt_data(pipeline, directory, rollout=UNEVEN, kl=0.0, **changes):
    changes["train"] = {"learning_rate": 1e-3, "updates_per_iteration": 1} | changes.get("train", {})
    data = settings(pipeline, directory, **changes) | {"objective": {"kind": "tilt", "kl": kl}}
    data["rollout"] |= rollout
    return data


LORA = {"rank": 3, "alpha": 5, "targets": ["to_q", "to_v"]}


@pytest.mark.parametrize(("lora", "guidance_scale", "keep"), [(LORA, 2.5, None), (None, 1.0, 3)])
def test_the_gradient_is_that_of_a_regression_at_the_splits(
    random_sd3, tmp_path, monkeypatch, lora, guidance_scale, keep
):
    """Against autograd of |x0hat - (x0hat_old + C)|^2 over nodes that are found, and averaged, one by one.

    Where some are kept, each other node counts as 0.
    """
    model = {"family": "sd3", "path": str(random_sd3), "lora": lora}
    data = tilt_data(random_sd3, tmp_path, model=model, train={"micro_batch": 5, "max_grad_norm": None})
    data["rollout"] |= {"guidance_scale": guidance_scale}
    data["objective"]["nodes"] = keep and {"keep": keep}
    trainer = make_trainer(data)
    generator = torch.Generator().manual_seed(7)
    for parameter in trainer.session.policy.parameters.values():  # LoRA starts as a zero that would hide mistakes
        parameter.data += 0.02 * torch.randn(parameter.shape, generator=generator)
    seen = {}
    original, assign = update.accumulate_gradient, trainer.crediting.assign
    monkeypatch.setattr(trainer.crediting, "assign", lambda d, c: seen.setdefault("credit", (assign(d, c), d, c))[0])

    def recorded(*, policy, **rest):
        found = original(policy=policy, **rest)
        seen["gradient"] = {name: p.grad.clone() for name, p in policy.parameters.items() if p.grad is not None}
        seen["evaluated"] = found.evaluated
        return found

    monkeypatch.setattr(update, "accumulate_gradient", recorded)
    weights = {name: p.data.clone() for name, p in trainer.session.policy.parameters.items()}
    trainer.iterate()
    (credit, _), drawn, conditioning = seen["credit"]
    for name, parameter in trainer.session.policy.parameters.items():
        parameter.data, parameter.grad = weights[name], None
    rollout, predict = drawn.rollout, velocity_of(trainer.session.adapter, conditioning, guidance_scale)
    forest, edges, terms = rollout.forest, rollout.edges, {0: [], 1: []}
    paths = [[]] * len(forest)
    for sample, node in enumerate(forest.leaf.tolist()):
        path = [node]
        while int(forest.parent[path[0]]) >= 0:
            path.insert(0, int(forest.parent[path[0]]))
        paths[sample] = path
    for origin in range(len(edges.step)):
        node = int(forest.parent[int(edges.node[edges.origin == origin][0])])
        below = [(s, path[path.index(node) + 1]) for s, path in enumerate(paths) if node in path]
        pairs = [(i, j) for i, child in below for j, other in below if child != other]
        a, x0 = credit.outcome, rollout.latents
        direction = sum((a[i] - a[j]) * (x0[i] - x0[j]) / 2 for i, j in pairs) / len(pairs)
        leaves, children = (torch.tensor(column) for column in zip(*below, strict=True))
        contrast = between_variance(a[leaves], torch.zeros_like(leaves), children, 1)
        x, sigma = edges.latents[origin : origin + 1], edges.sigma[origin : origin + 1]
        prediction = x - sigma * predict(x, sigma, edges.prompt[origin : origin + 1])
        centre = x0[[s for s, _ in below]].mean(0)
        scale = (prediction.detach() - centre).abs().mean()
        term = (prediction - (prediction.detach() + direction)).square().mean() / scale
        terms[int(edges.prompt[origin])].append((float(contrast), term))
    chosen = [term for own in terms.values() for _, term in sorted(own, key=lambda pair: -pair[0])[:keep]]
    (sum(chosen) / 16).backward()
    assert [len(own) for own in terms.values()] == [8, 8] and len(chosen) == 2 * (keep or 8)
    assert 0 < seen["evaluated"] <= len(chosen)
    own = {name: p.grad for name, p in trainer.session.policy.parameters.items() if p.grad is not None}
    assert flat(own).norm() > 0
    torch.testing.assert_close(flat(seen["gradient"]), flat(own), rtol=2e-3, atol=1e-5 * float(flat(own).abs().max()))


def test_only_splits_are_asked_where_every_step_is_stochastic(random_sd3, tmp_path):
    every = {"stochastic": {"kind": "all"}, "tree": {"roots": 2, "splits": [0, 2]}}
    trainer = make_trainer(tilt_data(random_sd3, tmp_path, every))
    metrics = trainer.iterate().metrics
    assert metrics["update/evaluated"] <= 2 * 2 * (1 + 2) and metrics["update/direction"] > 0
    assert trainer.updater.on_policy_error is not None and trainer.updater.on_policy_error < 1e-5


@pytest.mark.parametrize(("breakage", "step"), [(shifted_density, 2), (guidance_in_the_update_only, 0)])
def test_the_gate_stops_a_run_that_is_not_on_policy(random_sd3, tmp_path, monkeypatch, breakage, step):
    trainer, run = make_run(tilt_data(random_sd3, tmp_path))
    breakage(trainer, monkeypatch)
    before = flat(weights_of(trainer))
    with pytest.raises(GuardStop, match=rf"It breaks at step {step} .*Usual causes"):
        run.run()
    assert torch.equal(flat(weights_of(trainer)), before)


def test_a_guided_reference_pulls_to_what_guidance_gives(random_sd3, tmp_path):
    """At the start the policy is the reference, and what guidance adds is (g - 1) (v - v of the empty prompt)."""
    scale = 3.5
    data = tilt_data(random_sd3, tmp_path, kl=0.7, train={"max_grad_norm": None})
    data["objective"] |= {"kl_guidance": scale}
    trainer = make_trainer(data)
    done = trainer.iterate()
    adapter = load_adapter("sd3", str(random_sd3), dtype="float32", device=torch.device("cpu"))
    edges, batch = done.samples.rollout.edges, done.samples.rollout.batch
    origins = split_origins(done.samples.rollout)
    texts = [batch.prompts[row].text for row in edges.prompt[origins].tolist()]
    x, sigma = edges.latents[origins], edges.sigma[origins]
    with torch.no_grad():
        asked, empty = (adapter.velocity(x, sigma, adapter.encode_prompts(t), 1.0) for t in (texts, [""] * len(x)))
    added = ((scale - 1) * (asked - empty)).square().flatten(1).mean(1)
    assert added.min() > 0
    assert done.metrics["update/reference_kl"] == pytest.approx(float(added.mean()), rel=1e-4)
    assert trainer.session.meter.evaluations["reference"] == 2 * trainer.session.meter.evaluations["update"]


@pytest.mark.long
def test_a_run_that_goes_on_is_the_run_that_was_not_interrupted(random_sd3, tmp_path):
    """Two stages, so that splits lack some of their children, and audits that must train nothing."""
    explore = {"precision": "training", "steps": None, "candidates": 18, "keep": 12, "audit": 1}
    data = tilt_data(random_sd3, tmp_path / "a", UNEVEN | {"explore": explore})
    data["objective"]["nodes"] = {"keep": 0.5, "by": "random"}
    data["run"] |= {"iterations": 3, "checkpoint_every": 1}
    straight, _ = start(data)
    data["run"]["dir"] = str(tmp_path / "b")
    with crashing(Trainer, "iterate", 3):
        start(data)
    go_on(tmp_path / "b/run")
    assert_same_run(tmp_path / "b/run", straight)


def test_updates_share_the_nodes_out(random_sd3, tmp_path):
    """Where the rate moves nothing, the gradients of four updates of two nodes a prompt are on average that of all."""
    gradients = {}
    for updates in (1, 4):
        train = {"learning_rate": 1e-9, "updates_per_iteration": updates, "max_grad_norm": None}
        trainer = make_trainer(tilt_data(random_sd3, tmp_path / str(updates), train=train))
        record_gradients(trainer, gradients.setdefault(updates, []))
        trained = trainer.iterate().metrics["update/evaluated"]
        assert trained == 16  # two prompts, two trees of 1 + 3 nodes
    (whole,) = gradients[1]
    assert len(gradients[4]) == 4
    assert distance(sum(gradients[4]) / 4, whole) < 1e-4
    assert min(distance(part, whole) for part in gradients[4]) > 0.1
