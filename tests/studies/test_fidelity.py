"""How well cheap pools rank: against the full pool itself, an independent recomputation, and the command line."""

import dataclasses
import json
import math

import pytest
import torch
from PIL import Image
from scipy import stats

from diffrl.cli import main
from diffrl.config.load import make_config
from diffrl.errors import ConfigError
from diffrl.studies.fidelity.request import FidelityRequest
from diffrl.studies.fidelity.study import RANKING, mean_over_prompts, measure_fidelity
from diffrl.studies.fidelity.tables import notes, write_fidelity
from tests.training.harness import settings, start, write_config
from tests.training.scorers import Brightness

LOW_BITS = "tests.studies.test_fidelity:LowBits"
TREE = {"tree": {"roots": 3, "branches": 3, "splits": [1]}}
CONSTANT, FLAKY = "tests.training.scorers:Constant", "tests.training.scorers:Flaky"
SMALL = {"prompts": 3, "candidates": 6, "k": 2}


class LowBits(Brightness):
    """Mean of the pixels' two lowest bits, each pixel with its weight: any change of the pictures moves it."""

    def __call__(self, batch):
        bits = (batch.media & 3).flatten(1).double()
        weights = torch.linspace(0, 1, bits.shape[1], dtype=torch.float64).square()
        return dataclasses.replace(super().__call__(batch), raw=(bits @ weights / bits.shape[1]).float())


def measure(data, out, **request):
    return measure_fidelity(make_config(data), FidelityRequest(out, **{**SMALL, **request}))


@pytest.fixture(scope="module")
def measured(random_sd3, tmp_path_factory):
    """A tree in four ways; three leaves a root."""
    folder = tmp_path_factory.mktemp("fidelity")
    data = settings(random_sd3, folder, rollout=TREE, rewards=[{"name": LOW_BITS}])
    return measure(data, folder / "out", precision=("training", "nvfp4:emulated"), steps=(4, 5))


def variant(found, precision, steps):
    return next(pool for pool in found.variants if (pool.precision, pool.steps) == (precision, steps))


# --- the numbers -----------------------------------------------------------------------------------------------------


def test_the_truth_agrees_with_itself(measured):
    same = variant(measured, "training", 5)
    assert same.rewards == measured.truth.rewards and same.levels == (0, 1, 2, 3, 4, 5)
    for name in ("tau", "rho", "top_match", "bottom_match"):
        assert same.means[name].mean == pytest.approx(1.0, abs=1e-12) and same.means[name].prompts == 3
        assert same.means[name].standard_error == pytest.approx(0.0, abs=1e-12)
    assert same.means["reward_difference"].mean == same.means["pixel_difference"].mean == 0.0
    assert same.means["mean_rank"] == measured.perfect_mean_rank
    assert measured.perfect_mean_rank.mean == pytest.approx(1 / 10)  # ranks 0 and 1 of 0 ... 5


@pytest.mark.parametrize(("precision", "steps"), [("training", 4), ("nvfp4", 5)])
def test_numbers_equal_a_recomputation_from_the_stored_rewards(measured, precision, steps):
    pool = variant(measured, precision, steps)
    expected = {name: [] for name in (*RANKING, "reward_difference")}
    for proxy, true in zip(pool.rewards, measured.truth.rewards, strict=True):
        assert len(set(true)) == len(set(proxy)) == 6 and proxy != true
        expected["tau"].append(stats.kendalltau(proxy, true).statistic)
        expected["rho"].append(stats.spearmanr(proxy, true).statistic)
        by_proxy, by_true = (sorted(range(6), key=lambda i, r=r: -r[i]) for r in (proxy, true))
        expected["top_match"].append(len({*by_proxy[:2]} & {*by_true[:2]}) / 2)
        expected["bottom_match"].append(len({*by_proxy[-2:]} & {*by_true[-2:]}) / 2)
        expected["mean_rank"].append(sum(by_true.index(i) for i in by_proxy[:2]) / 2 / 5)
        expected["reward_difference"].append(sum(abs(p - t) for p, t in zip(proxy, true, strict=True)) / 6)
    for name, values in expected.items():
        assert pool.per_prompt[name] == pytest.approx(values), name
        assert pool.means[name].mean == pytest.approx(sum(values) / 3), name
        assert pool.means[name].standard_error == pytest.approx(stats.sem(values)), name
    assert pool.means["tau"].mean < 0.99  # there is something to find


def test_what_ran_and_the_cost_of_the_whole_trees_are_reported(measured):
    trees = 3 * 2  # prompts, roots: 6 candidates of 3 leaves; step 1 splits
    assert measured.truth.network_evaluations == trees * (2 + 3 * 3)
    assert variant(measured, "training", 5).network_evaluations == trees * (2 + 3 * 3)
    assert variant(measured, "nvfp4", 4).levels == (0, 1, 2, 3, 5)  # steps 1 and 2 are stochastic
    assert variant(measured, "nvfp4", 4).network_evaluations == trees * (2 + 3 * 2)
    assert {*measured.truth.seconds} == {"explore", "decode", "reward"} and min(measured.truth.seconds.values()) > 0
    assert measured.chance["top_match"].mean == measured.chance["bottom_match"].mean == pytest.approx(2 / 6)
    pool = variant(measured, "nvfp4", 5)
    assert (pool.engine, pool.compute_dtype) == ("emulated", "float32") and 0.1 < pool.weights_quantised < 1
    assert (measured.truth.engine, measured.truth.compute_dtype) == (None, "float32")
    assert 0 < pool.means["pixel_difference"].mean < 0.5 and pool.failed == 0


@pytest.mark.long
def test_the_same_seed_gives_the_same_numbers_and_another_one_others(measured, random_sd3, tmp_path):
    data = settings(random_sd3, tmp_path, rollout=TREE, rewards=[{"name": LOW_BITS}])
    request = {"precision": ("nvfp4:emulated", "training"), "steps": (4,)}
    again = measure(data, tmp_path / "a", **request)
    assert again.truth.rewards == measured.truth.rewards
    for pool in again.variants:
        assert pool.rewards == variant(measured, pool.precision, 4).rewards
        assert pool.per_prompt == variant(measured, pool.precision, 4).per_prompt
    other = measure(data, tmp_path / "b", seed=4, **request)
    assert other.truth.rewards != measured.truth.rewards and other.settings["seed"] == 4


@pytest.mark.long
def test_prompts_are_those_that_training_takes_first(random_sd3, tmp_path):
    from diffrl.data.prompts import load_prompts
    from diffrl.data.sampler import prompt_batch

    data = settings(random_sd3, tmp_path)
    for held_out, source in ((False, "shapes:train"), (True, "shapes:tune")):
        found = measure(data, tmp_path / source, held_out=held_out, precision=("training",), steps=(4,))
        batch = prompt_batch(load_prompts(source), 3, 3, 0)
        assert found.settings["prompts"] == [p.text for p in batch.prompts] and found.settings["source"] == source


def test_prompts_without_spread_are_left_out_and_counted(random_sd3, tmp_path):
    data = settings(random_sd3, tmp_path, rewards=[{"name": CONSTANT}])
    found = measure(data, tmp_path / "out", precision=("training",), steps=(4,))
    assert found.without_spread == [0, 1, 2]
    pool = found.variants[0]
    assert all(pool.means[name] == mean_over_prompts([]) for name in RANKING)
    assert pool.means["reward_difference"].mean == 0 and pool.means["pixel_difference"].mean > 0
    assert any("3 of 3 prompts have equal true rewards" in line for line in notes(found))
    write_fidelity(found, tmp_path / "out")
    assert "NaN" not in (tmp_path / "out" / "fidelity.json").read_text()


def test_a_candidate_that_cannot_be_scored_is_left_out(random_sd3, tmp_path):
    data = settings(random_sd3, tmp_path, rewards=[{"name": FLAKY, "options": {"failures": 2}}])
    found = measure(data, tmp_path / "out", precision=("training",), steps=(4,))
    pool = found.variants[0]
    assert pool.failed == 2 and pool.rewards[0][:2] == [None, None] and found.without_spread == []
    kept = stats.kendalltau(pool.rewards[0][2:], found.truth.rewards[0][2:]).statistic
    assert pool.per_prompt["tau"][0] == pytest.approx(kept)
    assert any("2 candidates could not be scored" in line for line in notes(found))


def test_means_leave_out_what_is_not_there():
    assert dataclasses.astuple(mean_over_prompts([1.0, math.nan, 4.0])) == pytest.approx((2.5, 1.5, 2))
    assert dataclasses.astuple(mean_over_prompts([7.0])) == (7.0, None, 1)
    assert dataclasses.astuple(mean_over_prompts([math.nan])) == (None, None, 0)


@pytest.mark.long
def test_a_run_is_measured_with_its_own_weights(random_sd3, tmp_path):
    data = settings(random_sd3, tmp_path, train={"learning_rate": 0.05}, guards={"reward_hacking": {"action": "off"}})
    run_dir, _ = start(data)
    request = {"precision": ("training", "int8"), "steps": (5,)}
    base = measure(data, tmp_path / "base", **request)
    aligned = measure(data, tmp_path / "aligned", run=run_dir, **request)
    assert aligned.truth.rewards != base.truth.rewards
    same, quantised = aligned.variants
    assert same.rewards == aligned.truth.rewards  # and the copy is of these weights too:
    own, other = (
        sum(
            abs(a - b)
            for row, true in zip(quantised.rewards, rewards, strict=True)
            for a, b in zip(row, true, strict=True)
        )
        for rewards in (aligned.truth.rewards, base.truth.rewards)
    )
    assert own < 0.2 * other


# --- defaults --------------------------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_exploring_stage_is_what_is_measured_by_default(random_sd3, tmp_path):
    explore = {"precision": "nvfp4", "engine": "emulated", "steps": 4, "candidates": 9, "keep": 3, "select": "random"}
    data = settings(random_sd3, tmp_path)
    data["rollout"]["explore"] = explore
    found = measure(data, tmp_path / "out", candidates=None)
    assert [(p.precision, p.engine, p.steps) for p in found.variants] == [
        ("nvfp4", "emulated", 4),
        ("nvfp4", "emulated", 5),
    ]
    assert [len(row) for row in found.truth.rewards] == [9, 9, 9]


@pytest.mark.long
def test_without_one_it_is_bfloat16_with_all_steps(random_sd3, tmp_path):
    found = measure(settings(random_sd3, tmp_path), tmp_path / "out", candidates=None, prompts=1)
    assert [(p.precision, p.engine, p.steps) for p in found.variants] == [("bfloat16", "torch", 5)]
    assert found.variants[0].compute_dtype == "bfloat16" and len(found.truth.rewards[0]) == 32
    assert found.variants[0].means["tau"].standard_error is None  # of one prompt


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({"steps": (3,)}, "--steps must be from 4 to 5"),
        ({"candidates": 7}, "multiple of the leaves of a tree. Got 7, with 3"),
        ({"k": 7}, "Got k=7, candidates=6"),
        ({"prompts": 100_000}, "Got 100000 of"),
        ({"precision": ("nvfp4",)}, "Here: --precision nvfp4:emulated."),
        ({"precision": ("float32",)}, "--precision must be one of training, bfloat16, int8, fp8, mxfp8, nvfp4"),
        ({"precision": ("int8:quick",)}, "--precision int8:quick: rollout.explore.engine must be a known name"),
    ],
    ids=str,
)
def test_what_cannot_be_measured_is_refused_before_anything_is_written(random_sd3, tmp_path, request_, expected):
    with pytest.raises(ConfigError) as error:
        measure(settings(random_sd3, tmp_path, rollout=TREE), tmp_path / "out", **request_)
    assert expected in str(error.value) and len(error.value.problems) == 1
    assert not (tmp_path / "out").exists()


def test_a_run_of_another_model_is_refused(random_sd3, tmp_path):
    data = settings(random_sd3, tmp_path)
    write_config(settings(random_sd3, tmp_path, model={"lora": {"rank": 3}}), tmp_path / "other" / "config.yaml")
    with pytest.raises(ConfigError, match="Got another model.lora"):
        measure(data, tmp_path / "out", run=tmp_path / "other")


# --- what is left for people -----------------------------------------------------------------------------------------


def test_the_files_say_the_same(measured, tmp_path):
    paths = write_fidelity(measured, tmp_path)
    assert [path.name for path in paths] == ["fidelity.json", "fidelity.md", "fidelity.png"]
    stored = json.loads(paths[0].read_text())
    assert stored["variants"][0]["means"]["tau"]["mean"] == measured.variants[0].means["tau"].mean
    assert stored["settings"]["config"]["rollout"]["tree"]["splits"] == [1]
    assert {"torch", "diffrl"} <= stored["environment"]["versions"].keys() and "run_id" not in stored["environment"]
    mean = variant(measured, "nvfp4", 4).means["tau"]
    row = next(line for line in paths[1].read_text().splitlines() if line.startswith("| nvfp4 (emulated) | 4 "))
    assert row.split(" | ")[2] == f"{mean.mean:.3f} ± {mean.standard_error:.3f}"
    with Image.open(paths[2]) as picture:
        assert picture.size[0] > 1000 and len(picture.convert("RGB").getcolors(1_000_000)) > 50


@pytest.mark.long
def test_the_command_writes_and_prints(random_sd3, tmp_path, capsys):
    path = write_config(settings(random_sd3, tmp_path), tmp_path / "config.yaml")
    arguments = ["fidelity", path, "rollout.steps=6", "--precision", "int8"]
    arguments += ["--prompts", 2, "--candidates", 5, "--k", 2]
    assert run(*arguments, "--steps", 4, "--steps", 6, "--out", tmp_path / "one") == 0
    text = capsys.readouterr().out
    assert "tau" in text and "top-2" in text and "Traceback" not in text
    assert {p.name for p in (tmp_path / "one").iterdir()} == {"fidelity.json", "fidelity.md", "fidelity.png"}
    assert run(*arguments, "--steps", 6, "--out", tmp_path / "two", "--json", "--seed", 8, "--held-out") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed == json.loads((tmp_path / "two" / "fidelity.json").read_text())
    assert printed["truth"]["steps"] == 6 and printed["settings"]["seed"] == 8


def test_mistakes_end_in_one_message_and_exit_code_2(random_sd3, tmp_path, capsys):
    path = write_config(settings(random_sd3, tmp_path), tmp_path / "config.yaml")
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine.txt").write_text("keep")
    for arguments, expected in (
        (["--out", full], "must be a new or empty folder"),
        (["--out", tmp_path / "new", "--k", 33], "--k must be"),
        (["--out", tmp_path / "new", "--run", tmp_path / "nowhere"], "A run is a directory"),
    ):
        assert run("fidelity", path, *arguments) == 2
        captured = capsys.readouterr()
        assert captured.err.startswith("error: ") and expected in captured.err and "Traceback" not in captured.err
    assert (full / "mine.txt").read_text() == "keep" and not (tmp_path / "new").exists()


def run(*arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return int(stop.value.code or 0)
