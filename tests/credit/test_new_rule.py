"""A credit rule as CONTRIBUTING says: one file and one line; it is accepted, checked, trained and explained."""

import json
from dataclasses import fields

import pytest
import yaml

from diffrl import registry
from diffrl.cli import main
from diffrl.config.load import config_schema
from diffrl.credit.rules import OUTCOME, RewardRule

FILE = '''"""What a step adds, doubled."""

from diffrl.credit.rules import RewardRule


def earn(scored, rule):
    from diffrl.credit.assign import compared
    from diffrl.functional.tree_values import step_rewards

    return compared(scored, rule, 2 * step_rewards(scored.value, scored.forest.parent))


DOUBLED = RewardRule(
    help="twice what it adds",
    meaning="a step counts twice",
    of_samples=False,
    by_value=True,
    differences=True,
    by_turns=False,
    needs_splits=False,
    earn=earn,
)
'''


def test_one_file_and_one_line(run_settings, tmp_path, monkeypatch, capsys):
    (tmp_path / "doubled.py").write_text(FILE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(registry.CREDIT_RULES, "doubled", "doubled:DOUBLED")
    reward = config_schema()["$defs"]["CreditSettings"]["properties"]["reward"]
    assert "doubled" in reward["anyOf"][0]["enum"]
    run_settings["run"] |= {"iterations": 1, "eval_every": None}
    run_settings["model"]["device"] = "cpu"
    run_settings["credit"] = {"reward": "doubled"}
    path = tmp_path / "config.yaml"

    def run(command, **credit):
        path.write_text(yaml.safe_dump({**run_settings, "credit": {"reward": "doubled", **credit}}), encoding="utf-8")
        with pytest.raises(SystemExit) as ended:
            main([command, str(path)])
        return ended.value.code, " ".join((captured := capsys.readouterr()).out.split() + captured.err.split())

    code, said = run("check")  # on chains all nodes are worth the same, as of any rule of differences
    assert code == 2 and "credit.value must be ode or predicted_x0 for steps of chains" in said
    assert run("check", value="ode")[0] == 0
    assert run("train", value="ode")[0] == 0
    rows = next((tmp_path / "runs").rglob("metrics.jsonl")).read_text().splitlines()
    assert any("train/loss" in json.loads(row) or "loss" in row for row in rows)


def test_a_fact_that_is_missing_is_an_error():
    facts = {field.name: getattr(OUTCOME, field.name) for field in fields(OUTCOME)}
    for name in facts:
        with pytest.raises(TypeError, match=name):
            RewardRule(**{other: fact for other, fact in facts.items() if other != name})
