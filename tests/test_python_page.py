"""docs/python.md and the notebooks do what they say: their code is run, top-down."""

from __future__ import annotations

import json
import re
import sys
import types
from pathlib import Path

import pytest

from tests.training.harness import undrawn

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Where a reader stands: beside configs and assets, in a folder that Python looks for modules in."""
    for name in ("configs", "assets"):
        (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def run_all(blocks, monkeypatch):
    """Run pieces of code one after the other as the main module; its names."""
    module = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", module)
    with undrawn():
        for number, block in enumerate(blocks):
            exec(compile(block, f"block {number}", "exec"), module.__dict__)  # noqa: S102
    return module.__dict__


def test_the_page_runs(folder, monkeypatch, capsys):
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    blocks = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    files = [block for block in blocks if re.match(r"# \w+\.py\n", block)]
    for block in files:
        name = block.split()[1]
        (folder / name).write_text(block)
        monkeypatch.delitem(sys.modules, name.removesuffix(".py"), raising=False)
    names = run_all([block for block in blocks if block not in files], monkeypatch)
    shown = capsys.readouterr().out
    assert [row["iteration"] for row in names["run"].metrics()] == [0, 1, 2]
    assert len(names["images"]) == 4 and len(names["rows"]) == 2
    assert "train.learning_rte is not a known key. Did you mean 'learning_rate'?" in shown
    rules = {kind for kind in ("my_parts:RewardWeighted", "my_parts:middle") if kind in repr(names["run"].config)}
    assert len(rules) == 2


def test_an_objective_of_the_page_trains_steps(folder, monkeypatch):
    page = (ROOT / "docs/python.md").read_text(encoding="utf-8")
    (parts,) = (b for b in re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL) if b.startswith("# my_parts.py"))
    (folder / "my_parts.py").write_text(parts)
    monkeypatch.delitem(sys.modules, "my_parts", raising=False)
    import diffrl

    changes = {"run.iterations": 1, "train.warmup_updates": 0, "eval.samples": 8, "prompts.per_iteration": 2}
    changes["objective"] = {"kind": "my_parts:PolicyGradient"}
    with undrawn():
        run = diffrl.train(diffrl.load_config("configs/quickstart.yaml", changes), quiet=True)
    assert run.metrics()[1]["update/grad_norm"] > 0 and run.metrics()[1]["update/on_policy_error"] < 1e-5


def cells_of(name):
    """The code of a notebook, cell by cell; nothing was run in it before."""
    notebook = json.loads((ROOT / "docs" / name).read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4 and all(cell["cell_type"] in ("markdown", "code") for cell in notebook["cells"])
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells)
    return ["".join(cell["source"]) for cell in cells]


def test_a_recipe_of_real_size_is_read_without_weights(folder, monkeypatch, capsys):
    names = run_all(cells_of("before_a_gpu.ipynb"), monkeypatch)
    shown, plan = capsys.readouterr().out, names["plan"]
    assert names["adapters"] == plan.memory.trained_parameters
    prompts, rounds = names["config"].prompts.per_iteration, names["config"].run.iterations
    calls = 2  # of a step: guidance
    assert plan.network_evaluations["rollout"] == names["shared"] * prompts * rounds * calls
    assert len(re.findall(r"<- split", shown)) == len(names["tree"].splits)
    assert "RTX 4090: " in shown and "train.gradient_checkpointing=true" in shown


def test_the_notebook_runs(folder, monkeypatch):
    names = run_all(cells_of("first_hour.ipynb"), monkeypatch)
    assert names["run"].iteration == 3 and names["mine"].iteration == 2
    assert names["mine"].config.objective.kind == "__main__:RewardWeighted"
