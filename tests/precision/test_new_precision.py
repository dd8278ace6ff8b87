"""A precision as CONTRIBUTING says: one file and one line; it is accepted, planned, explored in and named on pages."""

import json
import subprocess
import sys

import pytest
import yaml

from diffrl.precision.facts import Precision
from diffrl.precision.formats import PRECISIONS

FILE = '''"""E5M2 weights, a byte each, multiplied in float32."""

import torch
from torch import nn
from torch.nn import functional as F

from diffrl.precision.engines.base import Defaults, FrozenLinear, wrong_dtype
from diffrl.precision.facts import Precision, Price, Runner


class E5m2Linear(FrozenLinear):
    def __init__(self, linear):
        super().__init__(linear, torch.float32)
        self.weight = nn.Parameter(linear.weight.detach().to(torch.float8_e5m2), requires_grad=False)

    @torch.no_grad()
    def refresh(self, weight, bias):
        self.weight.copy_(weight)
        self.copy_bias(bias)

    def dequantised(self):
        return self.weight.float()

    def forward(self, x):
        return F.linear(x, self.weight.float(), self.bias)


class E5m2(Defaults):
    name, scaling, largest_error = "torch", "no scales", 0.2
    compute_dtype = outside_dtype = torch.float32

    def convert(self, linear):
        return E5m2Linear(linear)

    def inspect(self, layer):
        return wrong_dtype(layer.weight, torch.float8_e5m2)

    def emulate(self, x, weight):
        return F.linear(x, weight.to(torch.float8_e5m2).float())


PRECISION = Precision(
    name="e5m2",
    title="E5M2",
    meaning="numbers of 8 bits, five of them exponent",
    bytes_per_weight=1.0,
    whole=False,
    e4m3=False,
    cpu_note="On a CPU it saves memory alone.",
    prices={"cpu-measured": Price(0.9, "guessed")},
    runners={"torch": Runner(E5m2, None)},
)
'''
SCRIPT = """
import json, sys
from diffrl import registry
registry.PRECISIONS["e5m2"] = "e5m2:PRECISION"  # the line

from diffrl.cli import main
from diffrl.config.load import config_schema, load_config
from diffrl.cost.plan import make_plan
from diffrl.cost.prices import TABLES
from diffrl.gallery.trees.story import precision

path = sys.argv[1]
def copy_of(precision):
    return make_plan(load_config(path, [f"rollout.explore.precision={precision}"])).memory.kept["low-precision copy"]

facts = {
    "planned": {name: copy_of(name) for name in ("e5m2", "int8", "bfloat16")},
    "schema": "e5m2" in config_schema()["$defs"]["ExploreSettings"]["properties"]["precision"]["enum"],
    "page": precision({"precision": "e5m2", "engine": "torch"}),
    "price": TABLES["cpu-measured"].exploring("e5m2"),
}
open("facts.json", "w").write(json.dumps(facts))
for command in (["check", path], ["train", path]):
    try:
        main(command)
    except SystemExit as error:
        assert not error.code, error.code
"""


@pytest.mark.long
def test_one_file_and_one_line(run_settings, tmp_path):
    run_settings["run"] |= {"iterations": 1, "eval_every": None}
    run_settings["model"]["device"] = "cpu"
    run_settings["rollout"]["explore"] = {"precision": "e5m2", "candidates": 8, "keep": 4}
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(run_settings), encoding="utf-8")
    (tmp_path / "e5m2.py").write_text(FILE, encoding="utf-8")
    (tmp_path / "new.py").write_text(SCRIPT, encoding="utf-8")
    command = [sys.executable, "new.py", "config.yaml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    facts = json.loads((tmp_path / "facts.json").read_text())
    assert facts["planned"]["e5m2"] == facts["planned"]["int8"] != facts["planned"]["bfloat16"]
    assert facts["schema"] and facts["price"] == 0.9 and facts["page"] == "E5M2 (torch)"
    assert "exploring in e5m2 by torch" in done.stdout and "it saves memory alone" in done.stdout
    report = json.loads(next((tmp_path / "runs").rglob("precision.json")).read_text())
    assert report["precision"] == "e5m2" and report["quantised"]
    rows = [json.loads(line) for line in next((tmp_path / "runs").rglob("metrics.jsonl")).read_text().splitlines()]
    assert any("explore" in key for row in rows for key in row)


def test_a_fact_that_is_missing_is_an_error():
    """Not a default: the record cannot be made, so its file cannot be imported."""
    facts = vars(PRECISIONS["int8"])
    for name in facts:
        with pytest.raises(TypeError, match=name):
            Precision(**{other: fact for other, fact in facts.items() if other != name})
    with pytest.raises(ValueError, match="is run by torch, .* Got abacus for int8"):
        Precision(**{**facts, "runners": {"abacus": PRECISIONS["int8"].runners["torch"]}})
