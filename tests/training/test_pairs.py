"""DPO on given pairs, in the loop: gradients by autograd of the definition, cost, and what held-out pairs say."""

import json

import pytest
import torch

from diffrl.config.idle import unused_keys
from diffrl.config.load import dump_config, load_config, make_config
from diffrl.cost.meter import network_evaluations
from diffrl.cost.plan import make_plan
from diffrl.errors import ConfigError, SourceError
from diffrl.models.families import FAMILIES
from diffrl.preflight.check import check_config
from diffrl.records import Prompt
from diffrl.studies.fidelity.study import measure_fidelity
from diffrl.studies.requests import FidelityRequest
from diffrl.training.pairs import judge_pairs, read_pairs
from reward_models.media import save_media
from tests.edits import image as noise_image
from tests.tiers import daily
from tests.tolerances import NETWORK
from tests.training.harness import (
    distance,
    go_on,
    make_trainer,
    rows_of,
    settings,
    spy_gradients,
    start,
    summary_of,
    weights_of,
)

PROMPTS = ("a red circle", "a blue square", "a green triangle")
TIED = 2 * 30.0 * NETWORK
"""A margin of equal weights: beta, and errors of both images of the order of 1, where a copy rounds otherwise."""
LORA = {"rank": 3, "alpha": 5, "targets": ["to_q", "to_v"]}


def votes(directory, size=32, weights=(1.0, 2.5, 0.5)):
    """A list of three pairs, of noise in two kinds of colours, and one prompt without."""
    directory.mkdir(parents=True, exist_ok=True)
    noise, rows = torch.Generator().manual_seed(1), []
    for number, (prompt, weight) in enumerate(zip(PROMPTS, weights, strict=True)):
        names = [f"{number}-{side}.webp" for side in ("winner", "loser")]
        for name, most in zip(names, (256, 90), strict=True):
            image = torch.randint(0, most, (3, size, size), generator=noise).to(torch.uint8)
            save_media(image, directory / name)
        rows.append({"prompt": prompt, "winner": names[0], "loser": names[1], "weight": weight})
    path = directory / "votes.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def dpo(pipeline, directory, **changes):
    """Three pairs, two an iteration; the same list is held out."""
    path = str(votes(directory / "votes"))
    data = settings(pipeline, directory, prompts={"train": path, "eval": path, "eval_on_train": True})
    for section in ("rollout", "rewards"):
        del data[section]
    objective = {"kind": "dpo", "beta": 30.0, "levels": 3} | changes.pop("objective", {})
    data = data | {"objective": objective}
    data["train"] |= {"learning_rate": 1e-3, "micro_batch": 5}
    for section, values in changes.items():
        data[section] = data.get(section, {}) | values
    return data


def definition(taken, velocity, reference, beta):
    """Diffusion-DPO's loss of an update (arXiv 2311.12908, equation 14), pair by pair, with its whole gradient."""

    def error(v, unit):
        return (v[unit] - taken.target[unit]).square().mean()

    losses = []
    for cell in taken.cell.unique():
        one, other = torch.nonzero(taken.cell == cell).flatten().tolist()
        winner, loser = (one, other) if taken.advantage[one] > 0 else (other, one)
        assert torch.equal(taken.sigma[one], taken.sigma[other]) and float(taken.advantage[winner]) > 0
        noise = [taken.target[unit] + clean_of(taken, unit) for unit in (one, other)]
        torch.testing.assert_close(*noise)
        better = error(velocity, winner) - error(reference, winner)
        worse = error(velocity, loser) - error(reference, loser)
        losses.append(-taken.advantage[winner] * torch.log(torch.sigmoid(-beta / 2 * (better - worse))))
    return torch.stack(losses).mean()


def clean_of(taken, unit):
    """x0 of x = (1 - s) x0 + s eps and target = eps - x0."""
    return taken.latents[unit] - taken.sigma[unit] * taken.target[unit]


@pytest.mark.parametrize(("lora", "micro_batch"), daily([(None, 1), (LORA, 5)], [(LORA, 5)]))
def test_the_gradient_is_that_of_the_definition(random_sd3, tmp_path, monkeypatch, lora, micro_batch):
    """Also in the second update, where the policy has left the reference, and whatever shares a network call."""
    changes = {"model": {"lora": lora}, "train": {"micro_batch": micro_batch, "updates_per_iteration": 3}}
    trainer = make_trainer(dpo(random_sd3, tmp_path, **changes))
    seen = spy_gradients(
        monkeypatch,
        lambda term, taken, policy, reference: definition(taken, policy(*taken.start), reference(*taken.start), 30.0),
    )
    for _ in range(2):
        trainer.iterate()
    assert len(seen) == 6
    for found, expected, loss, wanted, _ in seen:
        assert distance(found, expected) < 1e-4 and float(expected.norm()) > 0
        assert loss == pytest.approx(wanted, rel=1e-4)
    assert float(seen[0].taken.margin.abs().max()) < TIED
    assert all(float(one.taken.margin.abs().max()) > TIED for one in seen[1:])


def test_the_control_matches_the_winners_alone(random_sd3, tmp_path, monkeypatch):
    trainer = make_trainer(dpo(random_sd3, tmp_path, objective={"loss": "sft"}, train={"updates_per_iteration": 1}))

    def of_winners(term, taken, policy, reference):
        error = (policy(*taken.start) - taken.target).square().flatten(1).mean(1)
        return (taken.advantage * error)[taken.advantage > 0].mean()

    seen = spy_gradients(monkeypatch, of_winners)
    metrics = trainer.iterate().metrics
    assert distance(*seen[0][:2]) < 1e-4 and "update/pair_margin" not in metrics
    assert metrics["update/evaluated"] == 2 * 3


@pytest.mark.parametrize("case", [{}, {"objective": {"loss": "sft"}}, {"objective": {"guidance": 2.0}}])
def test_a_run_costs_what_was_planned_and_scores_nothing_but_what_is_held_out(random_sd3, tmp_path, case):
    data = dpo(random_sd3, tmp_path, **case)
    plan, (run_dir, shown) = make_plan(make_config(data)), start(data)
    summary = summary_of(run_dir)
    counts, found = summary["counts"], summary["network_evaluations"]
    assert found["counted"] + found["skipped"] == found["planned"] and plan.network_evaluations["rollout"] == 0
    for name in ("rollout", "old", "evaluation"):
        assert counts.get(f"evaluations/{name}", 0) == plan.network_evaluations[name], name
    assert (counts["decodes"], counts["reward_calls"]) == (plan.decodes, plan.reward_calls) == (10, 10)
    rows = rows_of(run_dir)
    assert all("reward/mean" not in row for row in rows) and "nan" not in shown
    assert ("pairs/accuracy" in rows[-1]) == (case.get("objective", {}).get("loss") != "sft")


def test_held_out_pairs_are_tied_before_training_and_told_apart_after_it(random_sd3, tmp_path):
    data = dpo(random_sd3, tmp_path, run={"iterations": 12}, train={"updates_per_iteration": 1})
    run_dir, _ = start(data)
    first, *_, last = rows_of(run_dir)
    assert abs(first["pairs/margin"]) < TIED and (first["pairs/margin"] or first["pairs/accuracy"] == 0.5)
    assert last["pairs/accuracy"] == 1.0 and last["pairs/margin"] > 0.1
    assert last["update/loss"] < 0.6 < rows_of(run_dir)[1]["update/loss"]


def test_judging_is_the_same_every_time_and_alone_or_together(random_sd3, tmp_path):
    trainer = make_trainer(dpo(random_sd3, tmp_path))
    trainer.iterate()
    s = trainer.session
    pairs = list(s.eval_prompts)

    def judged(prompts):
        return judge_pairs(s, prompts, trainer.encode(prompts), 4)

    whole = judged(pairs)
    assert judged(pairs) == whole and whole["margin"] != 0.0
    assert judged([*pairs, Prompt("without a pair")]) == whole and judged([Prompt("without a pair")]) == {}


def test_a_resumed_run_is_the_same_run(random_sd3, tmp_path):
    whole, _ = start(dpo(random_sd3, tmp_path / "whole", run={"iterations": 4, "eval_every": 2}))
    parts, _ = start(dpo(random_sd3, tmp_path / "parts", run={"iterations": 2, "eval_every": 2}))
    go_on(parts, "run.iterations=4")
    assert rows_of(parts) == rows_of(whole)


def test_images_of_another_size_are_scaled_and_of_another_ratio_refused(random_sd3, tmp_path):
    data = dpo(random_sd3, tmp_path)
    votes(tmp_path / "votes", size=64)
    trainer = make_trainer(data)
    before = weights_of(trainer)
    trainer.iterate()
    assert any(not torch.equal(before[name], now) for name, now in weights_of(trainer).items())
    save_media(torch.zeros(3, 32, 48, dtype=torch.uint8), tmp_path / "votes" / "0-winner.webp")
    with pytest.raises(SourceError, match="An image of a pair cannot be used"):
        for _ in range(2):
            trainer.iterate()


def test_every_pair_is_read_before_a_run(random_sd3, tmp_path):
    data = dpo(random_sd3, tmp_path)
    path = tmp_path / "votes" / "1-loser.webp"
    noise_image(1, 32, 32).save(tmp_path / "whole.png")
    path.write_bytes((tmp_path / "whole.png").read_bytes()[:-400])  # its header can be read
    with pytest.raises(ConfigError, match=r"prompts.train: An image of a pair cannot be used. .*1-loser.webp"):
        make_trainer(data)
    save_media(torch.zeros(3, 32, 48, dtype=torch.uint8), path)
    with pytest.raises(ConfigError, match="must have the ratio of sides"):
        make_trainer(data)


def test_an_adapter_that_encodes_no_images_is_refused():
    with pytest.raises(ConfigError, match="an adapter of your own has no method for. Got object"):
        read_pairs(object(), {})


def test_a_study_of_pools_is_refused(random_sd3, tmp_path):
    request = FidelityRequest(out=tmp_path / "out")
    with pytest.raises(ConfigError, match="dpo, which draws and ranks nothing"):
        measure_fidelity(make_config(dpo(random_sd3, tmp_path)), request)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("section", "values"),
    [
        ("rewards", [{"name": "sharpness"}]),
        ("rollout", {"steps": 5, "tree": {"roots": 3}, "stochastic": {"kind": "none"}}),
        ("rollout", {"guidance_scale": 3.0}),
        ("credit", {"std": "batch"}),
    ],
)
def test_what_says_how_samples_are_drawn_is_refused(random_sd3, tmp_path, section, values):
    with pytest.raises(ConfigError, match=f"{section} must be left out with objective.kind: dpo"):
        make_config(dpo(random_sd3, tmp_path) | {section: values})


def media_of(family, seed):
    """A picture of noise of the size that the tiny pipelines draw, or a clip of the frames that they take."""
    noise = torch.Generator().manual_seed(seed)
    shape = {"video": (5, 3, 32, 32), "image": (3, 32, 32)}[FAMILIES[family].media]
    return torch.randint(0, 256, shape, generator=noise).to(torch.uint8)


OF_KINDS = ("flux", "wan_i2v")
"""Families of CI: latents of each layout, packed or not; the others are slow."""


@pytest.mark.parametrize(
    "family", daily(FAMILIES, ["wan", "qwen_image_edit"], set(FAMILIES) - {"wan", "qwen_image_edit", *OF_KINDS})
)
def test_pairs_train_every_family(family, random_pipelines, tmp_path):
    """Images, clips and edits; the cost is what was planned, and a LoRA moves."""
    rows = []
    for number in range(2):
        row = {"prompt": PROMPTS[number], "winner": f"{number}-w.webp", "loser": f"{number}-l.webp"}
        for seed, name in enumerate((row["winner"], row["loser"])):
            save_media(media_of(family, 2 * number + seed), tmp_path / name, fps=8)
        if FAMILIES[family].edits:
            noise_image(number, 32, 32).save(tmp_path / f"{number}.png")
            row["source"] = f"{number}.png"
        rows.append(json.dumps(row) + "\n")
    (tmp_path / "votes.jsonl").write_text("".join(rows))
    frames = {"frames": 5} if FAMILIES[family].media == "video" else {}
    data = dpo(
        random_pipelines(family), tmp_path / "run", model={"family": family, "lora": {"rank": 2, "alpha": 4}, **frames}
    )
    path = str(tmp_path / "votes.jsonl")
    data["run"]["iterations"] = 1
    data["prompts"] |= {"train": path, "eval": path}
    data["eval"] |= {"samples": 1, "steps": 1, "rewards": [{"name": "tests.training.scorers:Brightness"}]}
    trainer = make_trainer(data)
    before = weights_of(trainer)
    metrics = trainer.iterate().metrics
    meter, plan = trainer.session.meter, trainer.session.plan
    planned = sum(count for name, count in plan.network_evaluations.items() if name != "evaluation")
    assert network_evaluations(meter.state()) == planned and meter.evaluations["rollout"] == 0
    assert metrics["update/loss"] > 0 and metrics["update/skipped"] == 0
    assert any(not torch.equal(before[name], now) for name, now in weights_of(trainer).items())


def test_a_list_without_pairs_is_refused(random_sd3, tmp_path):
    with pytest.raises(ConfigError, match="prompts.train must name two images with every prompt"):
        start(dpo(random_sd3, tmp_path, prompts={"train": "shapes:train", "eval": "shapes:tune"}))


def test_pairs_that_another_objective_does_not_use_are_told(random_sd3, tmp_path):
    path = str(votes(tmp_path / "votes"))
    prompts = {"train": path, "eval": path, "eval_on_train": True, "per_iteration": 2}
    (found,) = [
        line
        for line in check_config(make_config(settings(random_sd3, tmp_path, prompts=prompts)))
        if "name a pair" in line
    ]
    assert "3 prompts name a pair, which objective.kind: grpo does not use; dpo does." in found


def test_the_control_says_that_beta_does_nothing(random_sd3, tmp_path):
    control, whole = (make_config(dpo(random_sd3, tmp_path, objective={"loss": loss})) for loss in ("sft", "sigmoid"))
    said = "Without effect: objective.beta; loss: sft compares nothing."
    assert said in unused_keys(control) and said not in unused_keys(whole)


def test_what_watches_drawn_samples_does_nothing_and_says_so(random_sd3, tmp_path):
    config = make_config(dpo(random_sd3, tmp_path, track={"trees": {"every": 1}}))
    (found,) = unused_keys(config)
    assert found.startswith("Without effect: guards.reward_hacking.diversity, guards.reward_hacking.sharpness, track.t")
    assert not any("keeps trees" in note for note in make_plan(config).notes)


def test_a_configuration_is_read_back_as_it_was_written(random_sd3, tmp_path):
    config = make_config(dpo(random_sd3, tmp_path))
    path = tmp_path / "config.yaml"
    path.write_text(dump_config(config))
    assert load_config(path) == config
