"""Samples that other processes draw: the same run as in one process, its weights on time, and every fault of theirs."""

import hashlib
import json
import re
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import safetensors.torch
import torch

from diffrl.config.load import make_config
from diffrl.errors import ConfigError, ExplorerError, ExplorersGone, GuardStop
from diffrl.explorer import Explorer, make_explorer_app
from diffrl.records import PromptBatch
from diffrl.rollout.denoise import Branch, Level
from diffrl.rollout.explorer import PROTOCOL, TreeAnswer, join_answers
from diffrl.rollout.observers import EdgeRecorder
from diffrl.rollout.tree import plan_forest, subset
from diffrl.training.explorers import sampling_facts
from diffrl.training.loop import Trainer
from reward_models.serving.server import background_app
from reward_models.serving.wire import PROTOCOL_HEADER, RefusedError
from tests.distributed.test_distributed import launch, policy
from tests.run.test_resume import crashing
from tests.tiers import daily
from tests.training.harness import (
    TREES,
    assert_same_run,
    assert_same_trees,
    flat,
    go_on,
    make_trainer,
    rows_of,
    start,
    weights_of,
    write_config,
)
from tests.training.test_drawing import NVFP4
from tests.training.test_tilt_training import LORA, tilt_data

NOWHERE = "http://127.0.0.1:9"
APART = ("draw/age", "evaluations/trees")
"""What a run has that is drawn elsewhere: the age, and its first prompts drawn again to look at."""


def explored_data(pipeline, directory, servers, draw=None, **changes):
    data = tilt_data(
        pipeline, directory, **{"model": {"lora": LORA, "family": "sd3", "path": str(pipeline)}, **changes}
    )
    data["rollout"]["prompts_at_once"] = 1  # so that batches are the same, however prompts are dealt out
    if draw is not None:
        data["rollout"]["draw"] = draw
    if servers:
        data["rollout"]["explorers"] = {"servers": servers, **changes.get("explorers", {})}
    return data


def explorers_of(data, servers, **options):
    """The same settings with explorers, for another directory."""
    run = {**data["run"], "dir": f"{data['run']['dir']}/elsewhere"}
    return {**data, "run": run, "rollout": {**data["rollout"], "explorers": {"servers": servers, **options}}}


@contextmanager
def served(data, kind=Explorer, **options):
    """An explorer that listens; its address."""
    explorer = kind(make_config(data), options.get("token"))
    with background_app(lambda token: make_explorer_app(explorer), **options) as address:
        yield address, explorer


# --- the same run ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind", ["tilt", *(pytest.param(kind, marks=pytest.mark.long) for kind in ("low precision", "grpo"))]
)
def test_an_explorer_gives_the_run_of_one_process(random_sd3, tmp_path, kind):
    """Bit for bit, records of trees, counts and densities included."""
    data = explored_data(random_sd3, tmp_path / "one", [], NVFP4 if kind == "low precision" else None, track=TREES)
    if kind == "grpo":
        data["objective"] = {"kind": "grpo"}
    with served(data) as (address, explorer):
        there, _ = start(data)
        here, _ = start(explorers_of(data, [address]))
    assert_same_run(there, here, APART)
    assert_same_trees(here, there)
    assert explorer.samples > 0 and explorer.weights


def test_two_explorers_draw_what_one_process_does(random_sd3, tmp_path):
    """Every prompt is drawn once, at its own address."""
    data = explored_data(random_sd3, tmp_path, [], prompts={"per_iteration": 3})
    with served(data) as (first, one), served(data) as (second, other):
        rollout = make_trainer(explorers_of(data, [first, second])).iterate().samples.rollout
    expected = make_trainer(data).iterate().samples.rollout
    assert {one.samples, other.samples} == {len(rollout) // 3, 2 * len(rollout) // 3}
    assert torch.equal(rollout.latents, expected.latents) and torch.equal(rollout.images, expected.images)
    for name, column in vars(expected.edges).items():
        assert torch.equal(getattr(rollout.edges, name), column), name


def test_parts_join_to_the_whole():
    """Numbers that name their place, dealt out to parts of one and two prompts, come back to it."""
    forest, sigmas = plan_forest(3, 2, {0: 2, 1: 1, 2: 3}), torch.linspace(1, 0, 5)
    batch = PromptBatch([None] * 3, [4, 5, 6], 0)
    whole = recorded(forest, sigmas)
    parts = []
    for rows in ((0,), (1, 2)):
        mine = torch.isin(forest.prompt, torch.tensor(rows))
        part = subset(forest, torch.nonzero(torch.isin(forest.sample_prompt, torch.tensor(rows))).flatten())
        edges = recorded(part, sigmas, torch.nonzero(mine).flatten())
        samples = torch.isin(forest.sample_prompt, torch.tensor(rows))
        parts.append(
            TreeAnswer(torch.nonzero(samples).float(), torch.nonzero(samples), edges.stored, edges.old_log_prob, 0)
        )
    joined = join_answers(batch, forest, sigmas, [0, 2], parts, [1, 2], torch.device("cpu"))
    for name in (
        "stored",
        "old_log_prob",
        "before",
        "after",
        "origin",
        "node",
        "step",
        "prompt",
        "sigma",
        "sigma_next",
    ):
        assert torch.equal(getattr(joined.edges, name), getattr(whole, name)), name
    assert joined.latents.flatten().tolist() == list(range(len(forest)))


def recorded(forest, sigmas, names=None):
    """Steps 0 and 2 of a forest whose latents are the numbers of their nodes and levels; nodes may have other names."""
    names = torch.arange(len(forest.parent)) if names is None else names
    recorder, nodes = EdgeRecorder(forest, [0, 2]), torch.nonzero(forest.parent < 0).flatten()
    for step in range(4):
        children = torch.nonzero(forest.step == step).flatten()
        following = children if len(children) else nodes
        value = (names * 10.0 + step)[:, None]
        branch = None
        if len(children):
            after, ones = value[children] + 5, torch.ones(len(children), 1)
            origin = torch.searchsorted(nodes, forest.parent[children])
            mean = after - names[children][:, None] / 100
            branch = Branch(origin=origin, children=children, mean=mean, std=ones, next_latents=after)
        level = Level(
            step=step,
            nodes=nodes,
            prompt=forest.prompt[nodes],
            first=False,
            latents=value[nodes],
            velocity=torch.zeros(len(nodes), 1),
            sigma=sigmas[step],
            sigma_next=sigmas[step + 1],
            branch=branch,
        )
        recorder(level)
        nodes = following
    return recorder.edges()


# --- weights ---------------------------------------------------------------------------------------------------------


NFT = {"kind": "nft", "old_decay_max": 0.5}


@pytest.mark.parametrize(("every", "objective"), [pytest.param(1, None, marks=pytest.mark.long), (2, None), (1, NFT)])
def test_overlapped_iterations_are_drawn_by_the_weights_before_the_last_update(random_sd3, tmp_path, every, objective):
    """The explorer is asked for iteration i + 1 by what draws before update i, or at the transfer before.

    With NFT that is the old policy, not the one that trains.
    """
    draw = NVFP4 | {"sync_every": every, "fidelity": {"every": None}}
    data = explored_data(random_sd3, tmp_path, [], draw, run={"iterations": 5})
    data["objective"] = objective or data["objective"]
    with served(data, Watched) as (address, explorer):
        trainer = make_trainer(explorers_of(data, [address], overlap=True))
        before, ages = [], []
        for _ in range(5):
            with trainer.updater.old_policy():
                before.append(digest(trainer.session.policy.state()))
            ages.append(trainer.iterate().metrics["draw/age"])
    transfers = [before[i - i % every] for i in range(5)]
    assert explorer.asked == {0: transfers[0], **{i + 1: transfers[i] for i in range(4)}}
    assert ages == {1: [0, 1, 1, 1, 1], 2: [0, 1, 2, 1, 2]}[every]
    assert len(set(before)) == 5


class Watched(Explorer):
    """Notes which weights drew which iteration."""

    def _draw(self, asked):
        self.__dict__.setdefault("asked", {})[asked.iteration] = self.weights
        return super()._draw(asked)


def digest(weights):
    return hashlib.sha256(safetensors.torch.save({name: one.clone() for name, one in weights.items()})).hexdigest()


def test_an_overlapped_run_goes_on_bit_for_bit(random_sd3, tmp_path):
    """What was being drawn when it ended is drawn again, by the weights of then; with other explorers too."""
    run = {"iterations": 5, "checkpoint_every": 1}
    data = explored_data(random_sd3, tmp_path / "straight", [], run=run)
    with served(data) as (address, _):
        straight, _ = start(explorers_of(data, [address], overlap=True))
        again = {**data, "run": {**data["run"], "dir": str(tmp_path / "broken")}}
        with crashing(Trainer, "iterate", 3):
            start(explorers_of(again, [address], overlap=True))
    broken = tmp_path / "broken/elsewhere/run"
    with served(data) as (address, _):
        with pytest.raises(ConfigError, match="rollout.explorers.overlap was true and is false"):
            go_on(broken, "rollout.explorers=null")
        go_on(broken, f"rollout.explorers.servers=[{address}]")
    assert_same_run(broken, straight)


def test_an_overlapped_run_that_is_made_longer_is_the_longer_run(random_sd3, tmp_path):
    data = explored_data(random_sd3, tmp_path, [], run={"iterations": 2})
    longer = {**data, "run": {**data["run"], "dir": str(tmp_path / "longer"), "iterations": 4}}
    with served(data, Watched) as (address, explorer):
        short, _ = start(explorers_of(data, [address], overlap=True))
        go_on(short, "run.iterations=4")
        asked = dict(explorer.asked)
        explorer.asked.clear()
        start(explorers_of(longer, [address], overlap=True))
    assert asked == explorer.asked


def test_a_run_goes_on_without_its_explorers(random_sd3, tmp_path):
    run = {"iterations": 3, "checkpoint_every": 1}
    data = explored_data(random_sd3, tmp_path, [], run=run)
    straight, _ = start(data)
    with served(data) as (address, _), crashing(Trainer, "iterate", 3):
        start(explorers_of(data, [address]))
    go_on(tmp_path / "elsewhere/run", "rollout.explorers=null")
    assert_same_run(tmp_path / "elsewhere/run", straight, APART)


# --- faults ----------------------------------------------------------------------------------------------------------


class Faulty(Explorer):
    """Spoils its answers as `fault` says."""

    fault = staticmethod(lambda body: body)

    async def draw(self, request):
        return type(self).fault(await super().draw(request))


def spoiled(**changes):
    """An answer with other tensors."""

    def fault(body):
        tensors = safetensors.torch.load(body)
        for name, change in changes.items():
            tensors[name] = change(tensors[name])
        return safetensors.torch.save(tensors)

    return fault


def busy(body):
    raise RefusedError(503, "It is busy. Ask again later.")


def poisoned(latents):
    return latents.index_fill(0, torch.tensor([0]), torch.nan)


FAULTS = {
    "half an answer": (lambda body: body[: len(body) // 2], "what is no answer: no safetensors file"),
    "nonsense": (lambda body: b"{}", "what is no answer: no safetensors file"),
    "too few samples": (spoiled(latents=lambda x: x[1:].clone()), "latents must be torch.float32"),
    "other steps": (spoiled(density=lambda x: x[1:].clone()), "density must be torch.float32"),
    "other dtype": (spoiled(stored=lambda x: x.double()), "stored must be torch.float32"),
    "images as numbers": (spoiled(images=lambda x: x.float()), "images must be uint8"),
    "NaN": (spoiled(latents=poisoned), "latents holds NaN or inf"),
    "busy": (busy, "it answered 503: It is busy"),
}


@pytest.mark.parametrize("fault", daily(FAULTS, ["half an answer", "NaN"]))
def test_what_an_explorer_does_wrong_is_said_and_done_by_another(random_sd3, tmp_path, monkeypatch, fault):
    """The run's numbers are those of explorers without the fault."""
    spoil, sentence = FAULTS[fault]
    monkeypatch.setattr(Faulty, "fault", staticmethod(spoil))
    data = explored_data(random_sd3, tmp_path, [])
    expected = make_trainer(data)
    expected.iterate()
    with served(data, Faulty) as (bad, _), served(data) as (good, _):
        trainer = make_trainer(explorers_of(data, [bad, good]))
        said = []
        trainer.messages._sinks.append(said.append)
        trainer.iterate()
    (first,) = said
    assert first.startswith(f"The explorer {bad} does not draw:") and sentence in first
    assert torch.equal(flat(weights_of(trainer)), flat(weights_of(expected)))


def test_a_run_ends_when_nobody_draws(random_sd3, tmp_path):
    data = explored_data(random_sd3, tmp_path, [NOWHERE])
    trainer = make_trainer(explorers_of(data, [NOWHERE], deadline=1.0))
    with pytest.raises(ExplorersGone, match=f"no samples for 2 of 2 prompts. {NOWHERE}: .*Start the explorers again"):
        trainer.iterate()


REFUSALS = {
    "other steps": ({"rollout": {"steps": 6}}, {}, "rollout.steps: 5 there, 6 here"),
    "other seed": ({"run": {"seed": 4}}, {}, "run.seed: 3 there, 4 here"),
    "other training": ({"model": {"lora": LORA | {"alpha": 4}}}, {}, "model.lora"),
    "token": ({}, {"token": "a-long-secret"}, "wants another token.*DIFFRL_EXPLORER_TOKEN"),
}


@pytest.mark.parametrize("case", REFUSALS)
def test_an_explorer_that_would_draw_something_else_refuses(random_sd3, tmp_path, case):
    changes, options, sentence = REFUSALS[case]
    data = explored_data(random_sd3, tmp_path, [])
    there = {**data, **{section: {**data[section], **values} for section, values in changes.items()}}
    with served(there, **options) as (address, _):
        trainer = make_trainer(explorers_of(data, [address]))
        with pytest.raises(ExplorerError, match=sentence):
            trainer.iterate()


def test_settings_that_change_no_sample_may_differ(random_sd3, tmp_path):
    """Facts know of rounding and places as little as of training; and of all else."""
    data = explored_data(random_sd3, tmp_path, [], NVFP4)
    copied = make_trainer(data).session.copy

    def facts(**changes):
        return sampling_facts(
            make_config({**data, **{name: data[name] | section for name, section in changes.items()}}), copied
        )

    alike = facts(
        rollout={"micro_batch": 3, "decode_batch": 2, "prompts_at_once": None, "draw": NVFP4 | {"sync_every": 7}},
        model={"vae_slicing": True, "lora": LORA | {"start": {"path": str(tmp_path), "sha256": "a" * 64}}},
        train={"learning_rate": 7e-4},
    )
    assert facts() == alike
    assert facts() != facts(rollout={"solver": "ode"}) != facts(rollout={"draw": {"precision": "int8"}})


def test_a_broken_policy_stops_the_run_in_the_explorers_words(random_sd3, tmp_path):
    data = explored_data(random_sd3, tmp_path, [])
    with served(data) as (address, _):
        trainer = make_trainer(explorers_of(data, [address]))
        for parameter in trainer.session.policy.parameters.values():
            parameter.data.fill_(torch.nan)
        with pytest.raises(GuardStop, match="samples hold NaN or inf after denoising"):
            trainer.iterate()


def test_bad_requests_are_refused(random_sd3, tmp_path):
    """And the explorer draws on."""
    data = explored_data(random_sd3, tmp_path, [])
    headers = {PROTOCOL_HEADER: str(PROTOCOL)}
    asked = {"facts": {}, "weights": "", "iteration": 0, "groups": [0], "prompts": ["a red circle"]}
    with served(data) as (address, explorer):

        def status(path, content, headers=headers):
            answer = httpx.post(f"{address}/v1/{path}", content=content, headers=headers)
            assert answer.status_code == 200 or answer.json()["error"]
            return answer.status_code

        right = {**asked, "facts": explorer.facts}
        assert status("draw", json.dumps(right), {}) == 400
        assert status("draw", b"\x80no JSON") == status("draw", json.dumps({**right, "groups": []})) == 400
        assert status("draw", json.dumps({**right, "iteration": -1})) == status("draw", json.dumps([right])) == 400
        assert (
            status("draw", json.dumps(asked)) == 412 and status("draw", json.dumps({**right, "weights": "ab"})) == 409
        )
        assert status("weights/ab", b"x") == 422
        wrong = safetensors.torch.save({"x": torch.zeros(1)})
        assert status(f"weights/{hashlib.sha256(wrong).hexdigest()}", wrong) == 422
        assert status(f"weights/{hashlib.sha256(b'x').hexdigest()}", b"x") == 422
        assert status("weights/ab", b"x" * int(explorer.limits.max_body_mb * 1e6 + 1)) == 413
        assert status("nothing", b"") == 404
        make_trainer(explorers_of(data, [address])).iterate()


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (
            {"objective": {"kind": "grpo"}, "explorers": {"overlap": True}},
            "overlap must be false with objective.kind: grpo",
        ),
        ({"credit": {"reward": "incremental", "value": "ode"}}, "must be null with credit.value: ode"),
        ({"train": {"sharding": "fsdp"}}, "must be null with train.sharding: fsdp"),
        ({"explorers": {"servers": ["127.0.0.1:8124"]}}, "rollout.explorers.servers"),
        ({"explorers": {"servers": [NOWHERE, NOWHERE]}}, "must be different"),
    ],
)
def test_what_explorers_do_not_go_with_is_refused(random_sd3, tmp_path, changes, sentence):
    data = explored_data(random_sd3, tmp_path, [])
    for section in ("objective", "credit", "train"):
        if section in changes:
            data[section] = {**({} if section == "objective" else data.get(section, {})), **changes[section]}
    with pytest.raises(ConfigError, match=sentence):
        make_config(explorers_of(data, **{"servers": [NOWHERE], **changes.get("explorers", {})}))


# --- processes -------------------------------------------------------------------------------------------------------


@contextmanager
def process(config, command=None):
    """`diffrl explore` as its own process; it and its address."""
    command = command or [sys.executable, "-m", "diffrl.cli", "explore", str(config), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as started:
        try:
            yield started, re.search(r"http://\S+(?=;)", started.stdout.readline())[0]
        finally:
            started.kill()


class Slow(Explorer):
    """Takes its time."""

    def _draw(self, asked):
        time.sleep(2)
        return super()._draw(asked)


def test_what_nobody_waits_for_is_not_drawn(random_sd3, tmp_path):
    """One draw under way cannot be taken back; those behind it are, once their clients have gone."""
    data = explored_data(random_sd3, tmp_path, [])
    with served(data, Slow) as (address, explorer):
        with pytest.raises(ExplorersGone):
            make_trainer(explorers_of(data, [address], timeout=0.3, deadline=2.5)).iterate()
        time.sleep(2.5)
        assert 0 < explorer.samples <= 2 * data["prompts"]["per_iteration"] * 12


@pytest.mark.long
def test_an_explorer_ends_while_it_draws(random_sd3, tmp_path):
    """A draw that takes for ever holds up nothing."""
    data = explored_data(random_sd3, tmp_path / "runs", [])
    config = write_config(data, tmp_path / "run.yaml")
    code = f"""
import sys, time, diffrl.explorer
diffrl.explorer.Explorer._draw = lambda self, asked: time.sleep(1000)
sys.argv = ["diffrl", "explore", {str(config)!r}, "--port", "0"]
from diffrl.cli import main
main()
"""
    with process(config, [sys.executable, "-c", code]) as (started, address):
        trainer = make_trainer(explorers_of(data, [address]))
        trainer.sampling.explorers.begin(trainer.next_batch(), trainer.session.policy.state())
        while httpx.get(f"{address}/health").json()["weights"] == "":
            time.sleep(0.05)
        started.terminate()
        trainer.sampling.forget()
        assert started.wait(timeout=60) == 0


@pytest.mark.long
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_an_explorer_may_be_killed_or_stopped_while_it_draws(random_sd3, tmp_path, monkeypatch, fault):
    """The other one draws its prompts, and the run ends with the numbers of one process."""
    data = explored_data(random_sd3, tmp_path / "runs", [], run={"iterations": 4})
    expected = make_trainer(data)
    for _ in range(4):
        expected.iterate()
    config = write_config(data, tmp_path / "run.yaml")
    with process(config) as (doomed, first), process(config) as (_, second):
        trainer = make_trainer(explorers_of(data, [first, second], timeout=5.0))
        trainer.iterate()
        begin = trainer.sampling.explorers.begin

        def begin_and_strike(*args):
            begin(*args)
            doomed.send_signal(fault)

        monkeypatch.setattr(trainer.sampling.explorers, "begin", begin_and_strike)
        for _ in range(3):
            trainer.iterate()
    assert torch.equal(flat(weights_of(trainer)), flat(weights_of(expected)))


@pytest.mark.long
def test_two_ranks_with_one_explorer_are_one_process(random_sd3, tmp_path):
    """Each asks for its own prompts; one of them sends the weights. Where it refuses, both end."""
    train = {"learning_rate": 3e-3, "epsilon": 1e-3}
    data = explored_data(random_sd3, tmp_path / "one", [], run={"iterations": 3}, train=train)
    with served(data) as (address, explorer):
        one, _ = start(explorers_of(data, [address], overlap=True))
        two = explorers_of({**data, "run": {**data["run"], "dir": str(tmp_path / "two")}}, [address], overlap=True)
        done = launch(write_config(two, tmp_path / "two.yaml"))
        assert done.returncode == 0, done.stderr
        other = {**two, "run": {**two["run"], "seed": 8, "name": "other"}}
        refused = launch(write_config(other, tmp_path / "other.yaml"))
    both = Path(two["run"]["dir"]) / "run"
    torch.testing.assert_close(policy(both, 2), policy(one, 2), rtol=1e-4, atol=5e-6)  # a step is 3e-3
    assert [row.get("draw/age") for row in rows_of(both)] == [row.get("draw/age") for row in rows_of(one)]
    assert refused.returncode != 0 and "run.seed: 8 there, 3 here" in refused.stderr + refused.stdout
