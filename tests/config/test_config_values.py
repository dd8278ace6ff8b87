"""Values come through as given, files as shipped load, and what is written reads back equal."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from diffrl.config import Config, dump_config, load_config

EXAMPLE = """\
run:      {name: quickstart, dir: runs, seed: 0, iterations: 100, checkpoint_every: 20, eval_every: 20}
model:    {family: sd3, path: assets/tiny-sd3, dtype: float32, lora: null}      # lora: {rank: 32, alpha: 64, targets: [...]}
prompts:  {train: shapes:train, eval: shapes:tune, per_iteration: 8}        # or a .txt / .jsonl path, or hub:<dataset>
rollout:
  steps: 8
  guidance_scale: 1.0
  dynamics: {kind: flow_sde, noise_level: 0.7}
  stochastic: {kind: window, start: 0, size: 4}                                  # all | splits | window
  tree: {roots: 16, branches: 2, splits: [], correlation: 4.0}                   # no splits = chains
  explore: null            # {precision: nvfp4, engine: auto, steps: 5, candidates: 64, keep: 16, select: best_worst, ...}
rewards:  [{name: shapes, weight: 1.0}]
credit:   {reward: outcome, value: leaves, fusion: uniform, turning_points: {constraint: true, balance: true},
           normalise: group, baseline: mean}
objective: {kind: grpo, clip: 1.0e-3, kl: 0.0}
train:    {learning_rate: 1.0e-4, schedule: cosine, updates_per_iteration: 2, micro_batch: 128, max_grad_norm: 1.0, ema: null}
eval:     {rewards: [{name: shapes_strict}], samples: 500, steps: 10}
track:    {tensorboard: false, wandb: null}
"""  # noqa: E501


@pytest.fixture
def example(tmp_path):
    path = tmp_path / "example.yaml"
    path.write_text(EXAMPLE)
    return path


def write(path, data):
    path.write_text(json.dumps(data, ensure_ascii=False))  # JSON is YAML; it writes 1e-07 without a dot
    return path


def assert_given(loaded, given_values, where="config"):
    """Every given value is in the loaded configuration, equal and of the same type (1 may become 1.0)."""
    if isinstance(given_values, dict):
        for key, value in given_values.items():
            assert_given(loaded[key], value, f"{where}.{key}")
    elif isinstance(given_values, list):
        assert len(loaded) == len(given_values), where
        for index, value in enumerate(given_values):
            assert_given(loaded[index], value, f"{where}.{index}")
    else:
        assert loaded == given_values and isinstance(loaded, bool) == isinstance(given_values, bool), where
        assert isinstance(loaded, str) == isinstance(given_values, str), where


def test_the_shortest_configuration_loads(tmp_path):
    data = {
        "run": {"iterations": 3},
        "model": {"family": "sd3", "path": "p"},
        "prompts": {"train": "a.txt", "eval": "hub:me/prompts", "per_iteration": 2},
        "rollout": {"steps": 2, "dynamics": {"kind": "dance_sde"}, "tree": {"roots": 2}},
        "rewards": [{"name": "shapes"}],
        "train": {"learning_rate": 1},
        "eval": {"rewards": [{"name": "shapes"}], "samples": 1, "steps": 1},
    }
    config = load_config(write(tmp_path / "short.yaml", data))
    assert config.rollout.stochastic.kind == "all" and config.track.wandb is None
    assert_given(config.model_dump(), data)


@pytest.mark.parametrize(
    ("train", "named", "used"),
    [
        ("moving:train", None, "moving:tune"),
        ("words:train", None, "words:tune"),
        ("shapes:train", "shapes:report", "shapes:report"),
    ],
)
def test_what_is_held_out_is_tune_unless_something_else_is_named(tmp_path, train, named, used):
    data = yaml.safe_load(EXAMPLE) | {"prompts": {"train": train, "eval": named, "per_iteration": 8}}
    config = load_config(write(tmp_path / "held_out.yaml", data))
    assert config.prompts.held_out == used and config.prompts.eval == named


def test_overrides_are_read_as_yaml_and_the_last_one_wins(example):
    config = load_config(
        example,
        [
            "run.seed=3",
            "run.seed=5",
            "rewards.0.weight=2",
            "model.lora.rank=8",
            "train.ema={decay: 0.99}",
            "train.learning_rate=3e-5",
            "rewards.0.options={strict: true, names: [a, b]}",
            "run.eval_every=null",
            "model.path=a=b",
            "guards.ratio.limit=0.2",
        ],
    )
    assert config.run.seed == 5 and config.rewards[0].weight == 2.0 and config.run.eval_every is None
    assert config.model.lora is not None and config.model.lora.rank == 8 and config.model.lora.alpha == 64
    assert config.train.ema is not None and config.train.ema.decay == 0.99 and config.train.learning_rate == 3e-5
    assert config.rewards[0].options == {"strict": True, "names": ["a", "b"]} and config.model.path == "a=b"
    assert config.guards.ratio.limit == 0.2 and config.guards.ratio.action == "warn"


@pytest.mark.parametrize(
    ("text", "value"),
    [("1e-4", 1e-4), ("1E-4", 1e-4), ("1.0e-4", 1e-4), ("+1.e-4", 1e-4), (".5", 0.5), ("1", 1.0), ("0.5", 0.5)],
)
def test_numbers_are_read_as_they_look(example, text, value):
    assert load_config(example, [f"train.learning_rate={text}"]).train.learning_rate == value


@pytest.mark.parametrize("name", ["on", "yes", "no", "2026-01-31", "1_000", "0x1f", "0o17"])
def test_names_that_old_yaml_takes_for_something_else_stay_names(example, name):
    config = load_config(example, [f"run.name={name}"])
    assert config.run.name == name


def test_a_leading_zero_means_nothing(example):
    assert load_config(example, ["run.seed=010"]).run.seed == 10


@pytest.mark.parametrize("text", ["1e4", "010", "true", "null", "~", "on", "2026-01-31", "1.5", ".5", ".inf", "a: b"])
def test_text_that_looks_like_something_else_is_read_back_as_text(example, text):
    config = load_config(example, [f"rewards.0.options={json.dumps({'value': text})}"])
    example.write_text(dump_config(config))
    assert load_config(example).rewards[0].options == {"value": text}


POSITIVE = st.floats(1e-12, 1e6)
NOISE = st.floats(1e-4, 100)
FELT = st.floats(1e-6, 1e6)
COUNT = st.integers(1, 500)
NAME = st.from_regex(r"[a-z][a-z0-9_-]{0,9}", fullmatch=True)
TEXT = st.text(st.characters(exclude_categories=("C", "Zl", "Zp")), max_size=9)  # what JSON and YAML write alike
VALUE = st.none() | st.booleans() | st.integers() | TEXT | st.lists(POSITIVE, max_size=3)
OPTIONS = st.dictionaries(NAME, VALUE, max_size=3)


def some_of(**values):
    return st.fixed_dictionaries({}, optional=values)


@st.composite
def configurations(draw):
    """Configurations with random values for a random choice of keys."""
    steps = draw(st.integers(2, 30))
    size = draw(st.integers(1, steps - 1))
    window = {"kind": "window", "start": draw(st.integers(0, steps - 1 - size)), "size": size}
    cosine = {"schedule": "cosine", "final_learning_rate": draw(st.floats(0, 1))}
    rewards = [
        {"name": name} | draw(some_of(weight=FELT, shift=st.floats(-9, 9), scale=FELT, options=OPTIONS))
        for name in draw(st.permutations(["shapes", "shapes_strict", "a:B"]))[: draw(st.integers(1, 3))]
    ]
    dynamics = st.one_of(
        st.fixed_dictionaries({"kind": st.just("flow_sde"), "noise_level": NOISE}),
        st.fixed_dictionaries({"kind": st.just("dance_sde"), "eta": NOISE}),
        st.fixed_dictionaries({"kind": st.just("cps"), "noise_level": st.floats(0.01, 1)}),
    )
    lora = some_of(rank=COUNT, alpha=st.floats(1e-3, 1e6), targets=st.lists(NAME, min_size=1, max_size=3))
    skippable = st.sampled_from(["skip", "stop"])
    guard = some_of(action=st.sampled_from(["warn", "skip", "stop"]), limit=POSITIVE)
    return {
        "run": {"iterations": draw(COUNT)}
        | draw(some_of(name=NAME, seed=st.integers(0, 2**63 - 1), checkpoint_every=COUNT, eval_every=st.none() | COUNT,
                       keep_checkpoints=st.none() | st.integers(2, 9))),
        "model": {"family": "sd3", "path": draw(NAME)}
        | draw(some_of(lora=st.none() | lora, height=st.none() | COUNT, max_sequence_length=st.none() | COUNT,
                       dtype=st.sampled_from(["float32", "bfloat16"]))),
        "prompts": {"train": draw(NAME) + ".txt", "eval": "shapes:tune", "per_iteration": draw(COUNT)},
        "rollout": {"steps": steps, "dynamics": draw(dynamics), "tree": {"roots": draw(st.integers(2, 99))}}
        | draw(some_of(stochastic=st.sampled_from([window, {"kind": "all"}]), guidance_scale=st.floats(1, 20))),
        "rewards": rewards,
        "objective": {"kind": "grpo"}
        | draw(some_of(clip=st.floats(1e-6, 0.9), clip_high=st.none() | FELT, kl=POSITIVE)),
        "credit": draw(some_of(baseline=st.sampled_from(["mean", "median"]), clamp=st.floats(0.001, 9))),
        "train": {"learning_rate": draw(st.floats(1e-9, 1))}
        | draw(st.sampled_from([{}, {"schedule": "constant"}, cosine]))
        | draw(some_of(ema=st.none() | st.fixed_dictionaries({"decay": st.floats(0.1, 0.99)}),
                       epsilon=st.floats(1e-16, 1), betas=st.lists(st.floats(0, 0.9), min_size=2, max_size=2),
                       gradient_checkpointing=st.booleans(),
                       max_grad_norm=st.none() | st.floats(1e-6, 1e12))),
        "eval": {"rewards": rewards[:1], "samples": draw(COUNT), "steps": draw(COUNT)},
        "guards": draw(some_of(nonfinite_loss=skippable, nonfinite_gradient=skippable, ratio=guard, kl=guard)),
    }  # fmt: skip


@settings(deadline=None, max_examples=25)
@given(data=configurations())
def test_nothing_that_is_given_is_changed_and_what_is_written_reads_back(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("given")
    config = load_config(write(folder / "given.yaml", data))
    assert_given(config.model_dump(), data)
    (folder / "resolved.yaml").write_text(dump_config(config), encoding="utf-8")
    assert load_config(folder / "resolved.yaml") == config


def test_a_configuration_cannot_be_changed_afterwards_and_says_when_it_evaluates(example):
    run = load_config(example, ["run.iterations=5", "run.eval_every=2"]).run
    with pytest.raises(ValidationError):
        run.seed = 3
    assert [i for i in range(6) if run.evaluates_after(i)] == [0, 2, 4, 5] and run.evaluations == 4


def test_the_resolved_configuration_holds_every_key(example):
    config = load_config(example)
    assert Config.model_validate(config.model_dump()) == config
    assert "keep_checkpoints: 3" in dump_config(config)


def test_a_configuration_is_read_without_loading_anything_heavy():
    code = (
        "import sys; from diffrl.config import load_config; load_config('configs/quickstart.yaml');"
        "sys.exit(', '.join({'torch', 'numpy', 'diffusers', 'transformers'} & set(sys.modules)) or 0)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True)
