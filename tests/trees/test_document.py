"""The trees that a run keeps: true to what was drawn, credited and trained, and without any effect on it."""

import copy
import json
from types import SimpleNamespace

import pytest
import torch
from PIL import Image

import diffrl.cost.meter as clocks
import diffrl.run.execution as execution
import diffrl.run.journal as journal
import diffrl.training.sampling as sampling
import diffrl.training.update as update
import diffrl.trees.recorder as keeping
import diffrl.trees.tracing as tracing
import diffrl.trees.write as trees_write
from diffrl.gallery.progress import log_messages
from diffrl.gallery.runs import RunSource
from diffrl.models.images import BrokenPictureError
from diffrl.records import Chosen, Exploration, Prompt, PromptBatch, Samples
from diffrl.rollout.denoise import Level
from diffrl.rollout.tree import plan_forest
from diffrl.training.loop import Trainer
from diffrl.trees.illustrations import illustration, most, pace
from diffrl.trees.images import decode_whole
from diffrl.trees.read import list_trees, read_tree
from diffrl.trees.tracing import Tracer
from reward_models.media import read_media
from tests.run.test_resume import Crash, crash_at
from tests.tiers import daily
from tests.training.harness import (
    BRIGHTNESS,
    EXPLORE,
    FOREST,
    FUSED,
    assert_same_run,
    go_on,
    last_checkpoint,
    make_run,
    make_trainer,
    settings,
    start,
)
from tests.training.test_gradient import naive_step, naive_velocity
from tests.trees.test_recorder import everything, forest_run

CHAINS = {"stochastic": {"kind": "window", "start": 0, "size": 3}, "tree": {"roots": 4}}
WIDE = FOREST | {"explore": EXPLORE | {"steps": None, "candidates": 24}}
LAGGING = {"kind": "nft", "old_decay_rate": 0.3, "old_decay_max": 0.6}
BOTH = {"kind": "nft", "kl": 0.0, "old_decay_max": 0.0, "edges": {"weight": 0.5}}


def kept(run):
    """One iteration; its trees as they are read back."""
    return observed(run)[0]


def observed(run):
    """One iteration; its trees as they are read back, what it did, and what was traced of its first prompts."""
    seen, trees = [], run.trainer.trees
    record = trees.record
    trees.record = lambda trace, *args, **kwargs: (seen.append(trace), record(trace, *args, **kwargs))[1]
    done = run.trainer.iterate()
    trees.record = record
    run.journal.trees(done.trees)
    run_dir = run.journal.run_dir
    return [read_tree(run_dir, *name) for name in list_trees(run_dir)], done, seen[0]


def files_of(run):
    """Every file of a run's trees."""
    return {path.relative_to(run): path.read_bytes() for path in sorted((run / "trees").rglob("*")) if path.is_file()}


def way(nodes, node):
    """Where a node lies: its root and the child taken at every stochastic step."""
    return way(nodes, nodes[node.parent]) + (node.child,) if node.parent is not None else (node.root,)


def forest_ways(forest):
    """(prompt, way) of each node of a forest."""
    found = []
    for i, parent in enumerate(forest.parent.tolist()):
        before = found[parent][1] + (int(forest.child[i]),) if parent >= 0 else (int(forest.root[i]),)
        found.append((int(forest.prompt[i]), before))
    return found


def picture(run, tree, name):
    with Image.open(run / "trees" / tree.name / name) as image:
        return read_media(image)


def brightness(image):
    return float(image.select(-3, 0).float().mean() / 255)


def leaves(tree):
    return [node for node in tree.nodes if node.leaf]


def above(tree, node):
    """Ids of a node and of all nodes on the way to its root."""
    return {node.id} if node.parent is None else {node.id} | above(tree, tree.nodes[node.parent])


# --- without effect --------------------------------------------------------------------------------------------------

RUNS = {
    "a forest's steps": {"rollout": FOREST, "credit": FUSED, "train": {"updates_per_iteration": 2}},
    "guided chains with a reference, predicted values, one prompt at a time": {
        "rollout": CHAINS | {"guidance_scale": 2.0, "prompts_at_once": 1},
        "credit": {"reward": "incremental", "value": "predicted_x0"},
        "objective": {"kl": 0.5},
        "train": {"ema": {"decay": 0.6}},
    },
    "a lagging policy, explored": {"rollout": WIDE | {"prompts_at_once": 1}, "objective": LAGGING, "credit": {}},
    "splits, explored and pruned": {
        "rollout": WIDE,
        "credit": {"prune": {"width": "extremes", "best": 2}},
        "objective": {"kind": "tilt", "kl": 0.2},
        "train": {"updates_per_iteration": 1},
    },
}


@pytest.mark.parametrize("name", daily(RUNS, [], ["a forest's steps", "a lagging policy, explored"]))
def test_a_run_is_the_same_with_and_without_trees(random_sd3, tmp_path, name):
    """Weights, optimiser, random states, counts, metrics, samples: bit for bit; trees' own evaluations are apart."""
    found = []
    for trees in ({"every": 1, "pictures": 5}, None):
        rollout, credit = RUNS[name]["rollout"], RUNS[name].get("credit", {})
        rest = {section: values for section, values in RUNS[name].items() if section not in ("rollout", "credit")}
        data = forest_run(random_sd3, tmp_path / str(trees is None), rollout, credit, **rest)
        data["run"]["iterations"] = 3
        data["track"]["trees"] = trees
        run, said = start(data)
        assert "Please report this as a bug" not in said
        found.append(run)
    assert len(list_trees(found[0])) == 6 and not (found[1] / "trees").exists()
    assert_same_run(*found, apart=("evaluations/trees", "trees"))


@pytest.mark.long
def test_a_resumed_run_is_the_same_bit_for_bit_and_leaves_the_same_trees(random_sd3, tmp_path, monkeypatch):
    measured = sampling.fidelity_metrics
    monkeypatch.setattr(sampling, "fidelity_metrics", lambda *args: measured(*args) | {"fidelity/tau": 0.1})

    def data(name):
        return everything(random_sd3, tmp_path / name) | {"track": {"trees": {"every": 1}}}

    straight, _ = start(data("a"))
    with monkeypatch.context() as patch:
        crash_at(patch, Trainer, "evaluate", 2)  # after the last iteration's trees, before its row and its checkpoint
        with pytest.raises(Crash):
            start(data("b"))
    run = tmp_path / "b/run"
    step, tensors, state = last_checkpoint(run)
    assert step == 3 and {"old", "ema"} <= {group for group, _ in tensors}
    assert state["fidelity"] == {"low": 1, "keep": 12, "fallen_back": False, "synced": False}
    assert (3, 0) in list_trees(run)
    (run / "trees/000003-9").mkdir()
    (run / "trees/000003-9/tree.json").write_text("stale")
    (run / "trees/.000002-0.tmp").mkdir()
    go_on(run)
    assert_same_run(run, straight)
    assert files_of(run) == files_of(straight) and len(list_trees(run)) == 8
    assert not (run / "trees/.000002-0.tmp").exists()


@pytest.mark.parametrize(
    ("trees", "eval_every", "expected"),
    [({}, 2, [0, 2, 4, 5]), ({"every": 3, "prompts": 1}, None, [0, 3, 5])],
)
@pytest.mark.long
def test_which_iterations_keep_trees(random_sd3, tmp_path, trees, eval_every, expected):
    data = settings(random_sd3, tmp_path, eval={"rewards": [{"name": BRIGHTNESS}], "samples": 1, "steps": 1})
    data["rollout"] |= {"steps": 3, "stochastic": {"kind": "all"}}
    data["run"] |= {"iterations": 6, "checkpoint_every": 6, "eval_every": eval_every}
    data["track"]["trees"] = trees
    run, _ = start(data)
    prompts = trees.get("prompts", 2)
    assert list_trees(run) == [(iteration, group) for iteration in expected for group in range(prompts)]
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()][1:]
    assert [row["iteration"] - 1 for row in rows if "seconds/trees" in row] == expected


# --- true ------------------------------------------------------------------------------------------------------------


CREDITED = [(FOREST, None), (WIDE, "extremes"), (CHAINS, None)]


@pytest.mark.parametrize(("rollout", "width"), CREDITED)
def test_a_tree_says_what_the_credit_was(random_sd3, tmp_path, rollout, width):
    """Every node is found in the credit by its address, and every node of the credit in the tree."""
    credit = {"prune": {"width": width, "best": 1 if width else None}}
    credit |= {"reward": "turning_point", "normalise": "depth", "value": "ode" if rollout is CHAINS else "leaves"}
    trainer, run = make_run(forest_run(random_sd3, tmp_path, rollout, credit))
    trees, done, _ = observed(run)
    drawn, given = done.samples, done.credit
    forest = drawn.rollout.forest
    rows = {key: row for row, key in enumerate(forest_ways(forest))}
    seen, turned = set(), 0
    for prompt, tree in enumerate(trees):
        assert tree.prompt == drawn.rollout.batch.prompts[prompt].text
        assert tree.group == drawn.rollout.batch.groups[prompt]
        asked = drawn.rollout.batch.prompts[prompt].metadata
        assert tree.metadata == json.loads(json.dumps(dict(asked))) and tree.metadata
        assert (tree.rule["prune"], tree.rule["kl"]) == (width is not None, 0.0)
        for node in tree.nodes:
            row = rows.get((prompt, way(tree.nodes, node)))
            assert node.sampled == (row is not None)
            assert node.sigma == pytest.approx(
                1.0 if node.step is None else float(drawn.rollout.sigmas[node.step + 1]), rel=1e-6
            )
            if row is None:
                assert (node.value, node.advantage, node.log_ratio, node.picture) == (None, None, None, None)
                continue
            seen.add(row)
            known = bool(given.values[row].isfinite())
            assert (node.value is not None) == known
            if known:
                assert node.value == pytest.approx(float(given.values[row]), rel=1e-6)
            assert node.turning == bool(given.turning[row])
            turned += node.turning
            if node.parent is not None:
                assert node.advantage == pytest.approx(float(given.advantage[row]), rel=1e-6)
                assert node.step == int(forest.step[row])
                gained = None if node.value is None else node.value - tree.nodes[node.parent].value
                if gained is not None and not node.turning:
                    assert node.credited == pytest.approx(gained, abs=1e-6) or (not gained and node.credited is None)
        if rollout is CHAINS:  # one end below every step
            for end in leaves(tree):
                for node in (tree.nodes[i] for i in above(tree, end)):
                    if node.turning:
                        assert node.credited == pytest.approx(end.leaf.total - tree.nodes[node.parent].value, abs=1e-6)
    assert seen == set(range(len(forest.parent))) and (turned > 0 or rollout is WIDE)  # of so few some pools have none


@pytest.mark.long
def test_a_tree_names_the_copy_that_drew_it_and_how_old_its_weights_were(random_sd3, tmp_path):
    draw = {"precision": "int8", "engine": "emulated", "sync_every": 2}
    data = forest_run(random_sd3, tmp_path, FOREST | {"draw": draw}, {}, train={"updates_per_iteration": 1})
    data["objective"] = {"kind": "tilt"}
    data["run"] |= {"iterations": 2}
    run = make_run(data)[1]
    kept(run)
    trees = kept(run)
    assert {tree.iteration: tree.sampled_by["age"] for tree in trees} == {0: 0, 1: 1}
    assert {(tree.sampled_by["precision"], tree.sampled_by["engine"]) for tree in trees} == {("int8", "emulated")}


@pytest.mark.long
def test_the_chosen_are_the_best_and_the_worst_and_their_paths_were_drawn(random_sd3, tmp_path):
    trees = kept(make_run(forest_run(random_sd3, tmp_path, WIDE))[1])
    for tree in trees:
        assert tree.explored == {
            "precision": "nvfp4", "engine": "emulated", "steps": 5, "select": "best_worst", "candidates": 24,
            "keep": 8, "audit": 2,
        }  # fmt: skip
        ranked = sorted(leaves(tree), key=lambda node: -node.leaf.proxy)
        assert len(ranked) == 24 and len({node.leaf.proxy for node in ranked}) == 24
        for rank, node in enumerate(ranked):
            reason = f"best {rank + 1}" if rank < 4 else f"worst {24 - rank}" if rank >= 20 else None
            assert node.leaf.audit == (node.leaf.chosen == "audit")
            if reason or not node.leaf.audit:
                assert node.leaf.chosen == reason
            assert node.sampled == (node.leaf.chosen is not None) == (node.leaf.total is not None)
            assert bool(node.leaf.rewards) == node.sampled
            assert (node.leaf.advantage is None) == (node.leaf.audit or not node.sampled)
            assert len(node.leaf.path) == 2
        assert sum(node.leaf.audit for node in ranked) == 2
        drawn = {node for end in ranked if end.leaf.chosen for node in above(tree, end)}
        assert drawn == {node.id for node in tree.nodes if node.sampled}


@pytest.mark.long
def test_a_contrasts_reasons_name_nodes_of_the_tree(random_sd3, tmp_path):
    """Of both prompts: below the node that is named, two children hold leaves whose proxies differ by the gap."""
    rollout = FOREST | {"explore": WIDE["explore"] | {"select": "sibling_contrast", "audit": 0}}
    for tree in kept(make_run(forest_run(random_sd3, tmp_path, rollout))[1]):
        named = [node for node in leaves(tree) if "split at node" in (node.leaf.chosen or "")]
        assert len(named) == 8
        for node in named:
            split = int(node.leaf.chosen.split("node ")[1].split(":")[0])
            gap = float(node.leaf.chosen.split("gap ")[1].split(",")[0])
            assert split in above(tree, node) and len(tree.children()[split]) == 2
            sides = [
                [end.leaf.proxy for end in leaves(tree) if child.id in above(tree, end)]
                for child in tree.children()[split]
            ]
            largest = max(max(sides[0]) - min(sides[1]), max(sides[1]) - min(sides[0]))
            assert largest == pytest.approx(gap, rel=1e-2)


OBJECTIVES = {
    "grpo": {"kind": "grpo"},
    "grpo with a reference": {"kind": "grpo", "kl": 0.2},
    "nft with a reference": {"kind": "nft", "kl": 0.2},
    "nft with a reference and steps": BOTH | {"kl": 0.2},
    "crd": {"kind": "crd", "levels": 2, "kl": 0.0},
}
STEPS = ("grpo", "grpo with a reference", "nft with a reference and steps")
TRAINED = [("grpo", "parent_top1"), *((name, None) for name in list(OBJECTIVES)[1:])]


@pytest.mark.parametrize(
    ("objective", "width"),
    daily(TRAINED, [("grpo", "parent_top1"), ("nft with a reference", None), ("crd", None)]),
)
def test_what_trained_is_what_the_losses_were_given(random_sd3, tmp_path, monkeypatch, objective, width):
    """The units of every gradient are spied on; one counts if it has an advantage, or if its loss asks the reference.

    A pool of which one candidate of the second prompt cannot be scored: it enters nothing.
    """
    steps = objective in STEPS
    reward = [{"name": "tests.training.scorers:Flaky", "options": {"how": "report"}}]
    credit = FUSED | {"prune": {"width": width}} if steps else {}
    trainer, run = make_run(
        forest_run(random_sd3, tmp_path, WIDE, credit, objective=OBJECTIVES[objective], rewards=reward)
    )
    edges, accumulate = {}, update.accumulate_gradient
    samples = []

    def spied(*, shares, **rest):
        for part, examples, index in shares:
            taken = examples.take(index[examples.active[index]])
            pulled = part.objective.needs_reference
            if hasattr(taken, "edges"):
                for node, advantage in zip(taken.edges.node.tolist(), taken.advantage.tolist(), strict=True):
                    edges[node] = pulled or advantage != 0
            else:
                level = taken.sigma.reshape(-1, 1, 1, 1)
                samples.extend(taken.clean if hasattr(taken, "clean") else taken.latents - level * taken.target)
        return accumulate(shares=shares, **rest)

    monkeypatch.setattr(update, "accumulate_gradient", spied)
    trees, done, _ = observed(run)
    rollout = done.samples.rollout
    ways = forest_ways(rollout.forest)
    expected = {ways[node] for node, trains in edges.items() if trains}
    assert expected == {(p, way(tree.nodes, n)) for p, tree in enumerate(trees) for n in tree.nodes if n.trained}
    ends = {}
    for latents, node in zip(rollout.latents, rollout.forest.leaf.tolist(), strict=True):
        ends[ways[node]] = any(torch.allclose(latents, one, atol=1e-4) for one in samples)
    found = {(p, way(tree.nodes, n)): n.leaf.trained for p, tree in enumerate(trees) for n in leaves(tree) if n.sampled}
    finished = "grpo" not in objective
    assert found == ends and any(ends.values()) == finished and bool(expected) == steps
    assert all(tree.rule["edges"] == steps and tree.rule["samples"] == finished for tree in trees)


@pytest.mark.long
def test_the_rule_tells_what_the_update_was(random_sd3, tmp_path, monkeypatch):
    data = forest_run(random_sd3, tmp_path, train={"learning_rate": 1e-4, "updates_per_iteration": 3})
    data["model"] |= {"dtype": "bfloat16"}
    data["guards"] = {"on_policy_tolerance": 1.0}
    trainer, run = make_run(data)
    answers = iter([True, False, False])
    monkeypatch.setattr(trainer.guard, "allows", lambda *args: next(answers))
    for tree in kept(run):
        told = {name: tree.rule[name] for name in ("updates", "skipped", "dtype", "prune", "kl")}
        assert told == {"updates": 3, "skipped": 2, "dtype": "bfloat16", "prune": False, "kl": 0.0}


@pytest.mark.parametrize("action", ["widen", "fall_back"])
@pytest.mark.long
def test_what_the_fidelity_watch_changed_is_told(random_sd3, tmp_path, monkeypatch, action):
    """The first iteration's ranking is bad: the second explores otherwise. The watch's words are an alarm."""
    measured = sampling.fidelity_metrics
    monkeypatch.setattr(sampling, "fidelity_metrics", lambda *args: measured(*args) | {"fidelity/tau": 0.1})
    data = forest_run(
        random_sd3, tmp_path, FOREST | {"explore": EXPLORE | {"fidelity": {"action": action, "patience": 1}}}
    )
    data["track"]["trees"] = {"every": 1, "pictures": 0}
    run, _ = start(data)
    first, second = (read_tree(run, iteration, 0) for iteration in (0, 1))
    before = {"precision": "nvfp4", "engine": "emulated", "steps": 4, "keep": 8, "audit": 2}
    after = {"keep": 12} if action == "widen" else {"precision": "training", "engine": "policy", "steps": 5}
    for tree, expected in ((first, before), (second, before | after)):
        assert {name: tree.explored[name] for name in expected} == expected
        drawn = [node for node in leaves(tree) if node.sampled]
        assert sum(not node.leaf.audit for node in drawn) == expected["keep"]
        assert len(drawn) == expected["keep"] + 2
    alarms, _ = log_messages(RunSource("run", run, "run"))
    assert "Exploration ranks with tau 0.10" in alarms[0][0]


@pytest.mark.long
def test_pictures_are_those_that_were_scored(random_sd3, tmp_path):
    """The reward is the picture's brightness: of finished pictures, of predicted ones, of the proxies."""
    credit = {"reward": "incremental", "value": "predicted_x0"}
    trainer, run = make_run(forest_run(random_sd3, tmp_path, WIDE, credit))
    run_dir = run.journal.run_dir
    for tree in kept(run):
        inner = {node.parent for node in tree.nodes if node.sampled}
        assert {node.id for node in tree.nodes if node.picture} == {node.id for node in tree.nodes if node.sampled}
        for node in tree.nodes:
            if node.id in inner:
                assert brightness(picture(run_dir, tree, node.picture)) == pytest.approx(node.value, abs=1e-5)
            elif node.sampled:
                assert brightness(picture(run_dir, tree, node.picture)) == pytest.approx(node.leaf.total, abs=1e-6)
            if node.leaf:
                assert brightness(picture(run_dir, tree, node.leaf.proxy_picture)) == pytest.approx(
                    node.leaf.proxy, abs=1e-6
                )
        assert tree.nodes[0].picture == "node-0.webp" or not tree.nodes[0].sampled


@pytest.mark.long
def test_few_pictures_show_the_way_to_the_best_and_the_worst(random_sd3, tmp_path):
    limit = 3
    data = forest_run(random_sd3, tmp_path, WIDE)
    data["track"]["trees"] = {"pictures": limit, "prompts": 1}
    (tree,) = kept(make_run(data)[1])
    ends = sorted((node for node in leaves(tree) if node.sampled), key=lambda node: -node.leaf.total)
    assert all(node.picture for node in ends)
    inner = {node.id for node in tree.nodes if node.picture and not node.leaf}
    assert len(inner) == limit
    best, worst = ({*above(tree, end)} - {end.id} for end in (ends[0], ends[-1]))
    assert inner <= best | worst and (not limit or best <= inner)
    proxies = [node for node in leaves(tree) if node.leaf.proxy_picture]
    assert len(proxies) == limit and all(node.sampled for node in proxies)


@pytest.mark.long
def test_only_what_is_kept_is_held(random_sd3, tmp_path):
    """Proxies that no tree shows are let go of when it is known which; all of it once the trees are written."""
    for limit in (0, 3):
        data = forest_run(random_sd3, tmp_path / str(limit), WIDE)
        data["track"]["trees"] = {"pictures": limit}
        trainer, run = make_run(data)
        trees, done, trace = observed(run)
        shown = [node.leaf.proxy_picture for tree in trees for node in leaves(tree) if node.leaf.proxy_picture]
        assert len(trace.proxies) == len(shown) == 2 * limit
    data = forest_run(random_sd3, tmp_path / "run", WIDE)
    data["run"] |= {"iterations": 1, "checkpoint_every": 1}
    trainer, run = make_run(data)
    run.run()
    assert len(list_trees(tmp_path / "run/run")) == 2


def test_illustrations_are_small():
    """The longer edge and the frames; a picture's content stays where it was."""
    wide = torch.zeros(3, 700, 1300, dtype=torch.uint8)
    wide[0, :350, :650] = 200
    small = illustration(wide)
    assert small.shape == (3, 276, 512) and small.dtype == torch.uint8
    for (row, column), value in {(60, 120): 200, (60, 400): 0, (220, 120): 0}.items():
        assert abs(int(small[0, row, column]) - value) <= 1
    assert abs(float(small[0].float().mean()) - 50) < 1
    clip = torch.arange(37, dtype=torch.uint8).reshape(37, 1, 1, 1).expand(37, 3, 1030, 515)
    frames = illustration(clip)
    shown = frames[:, 0, 0, 0].tolist()
    assert frames.shape == (16, 3, 512, 256) and (shown[0], shown[-1]) == (0, 36)
    assert {later - earlier for earlier, later in zip(shown, shown[1:], strict=False)} == {2, 3}
    assert pace(clip) == pytest.approx(16 / 37) and pace(frames) == pace(wide) == 1
    for unchanged in (wide[:, :512, :3], clip[:16, :, :64, :64]):
        assert torch.equal(illustration(unchanged), unchanged)
    assert (most(None, wide), most(None, clip), most(5, wide), most(0, clip)) == (96, 16, 5, 0)


@pytest.mark.long
def test_a_full_disk_ends_the_trees_and_not_the_run(random_sd3, tmp_path, monkeypatch):
    save, calls = trees_write.save_illustration, []

    def full(*args):
        calls.append(args)
        if len(calls) > 3:  # within the second tree
            raise OSError(28, "No space left on device")
        save(*args)

    data = forest_run(random_sd3, tmp_path, CHAINS, {})
    data["run"] |= {"iterations": 4, "checkpoint_every": 2}
    data["track"]["trees"] = {"every": 1, "pictures": 0, "prompts": 2}
    monkeypatch.setattr(trees_write, "save_illustration", full)
    run, told = start(data)
    assert told.count("No space left on device") == told.count("No more trees are kept") == 1 and len(calls) == 4
    assert (run / "log.txt").read_text().count("No space left on device") == 1
    assert (run / "summary.json").exists() and [path.name for path in (run / "trees").iterdir()] == []
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert len(rows) == 5 and ["seconds/trees" in row for row in rows[1:]] == [True, False, False, False]


@pytest.mark.long
def test_the_time_of_trees_is_no_time_of_training(random_sd3, tmp_path, monkeypatch):
    """A clock that goes on only where it is told to: 7 s outside any phase, 100 s in writing the trees."""
    now = [0.0]
    clock = SimpleNamespace(perf_counter=lambda: now[0], monotonic=lambda: now[0])
    for module in (execution, clocks):
        monkeypatch.setattr(module, "time", clock)
    trainer, run = make_run(forest_run(random_sd3, tmp_path))
    samples, written = run.journal.train_samples, run.journal.trees

    def slow(seconds, does):
        return lambda *args: (now.__setitem__(0, now[0] + seconds), does(*args))

    monkeypatch.setattr(run.journal, "train_samples", slow(7, samples))
    monkeypatch.setattr(run.journal, "trees", slow(100, written))
    run.run()
    rows = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    assert [row["cost/seconds"] for row in rows] == [0, 7, 14]
    assert [row["seconds/other"] for row in rows[1:]] == [7, 7]
    assert [row["seconds/trees"] for row in rows[1:]] == [100, 100]


@pytest.mark.long
def test_the_time_of_candidates_pictures_is_time_of_trees(random_sd3, tmp_path, monkeypatch):
    """They are made small while the pool is decoded: 5 s each, of the two kept prompts' 24 candidates each."""
    now, small = [0.0], illustration
    monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    monkeypatch.setattr(tracing, "illustration", lambda media: (now.__setitem__(0, now[0] + 5), small(media))[1])
    trainer = make_trainer(forest_run(random_sd3, tmp_path, WIDE))
    trainer.iterate()
    assert {phase: spent for phase, spent in trainer.clock.seconds.items() if spent} == {"trees": 2 * 24 * 5}


def test_a_phase_within_another_is_not_counted_twice(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(clocks, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    clock = clocks.PhaseClock(torch.device("cpu"))

    def phase(name, seconds, *inner):
        with clock(name):
            now[0] += seconds
            for one in inner:
                phase(*one)
            now[0] += 1

    phase("a", 2, ("b", 3, ("c", 5), ("a", 7)), ("c", 11))
    phase("b", 13)
    assert clock.seconds == {"a": (2 + 1) + (7 + 1), "b": (3 + 1) + (13 + 1), "c": (5 + 1) + (11 + 1)}
    with pytest.raises(KeyError), clock("d"):
        phase("e", 17)
        raise KeyError
    phase("d", 19)
    assert clock.seconds["e"] == 18 and clock.seconds["d"] == 20 and sum(clock.seconds.values()) == now[0]


@pytest.mark.long
def test_a_failed_scorer_is_named(random_sd3, tmp_path):
    reward = [{"name": "tests.training.scorers:Flaky", "options": {"how": "report", "failures": 2}}]
    data = forest_run(random_sd3, tmp_path, rewards=reward)
    data["rollout"] |= {"explore": EXPLORE | {"steps": None, "candidates": 12, "keep": 8}}
    trees = kept(make_run(data)[1])
    failed = [node for node in leaves(trees[0]) if node.leaf.error]
    assert len(failed) >= 2 and all("no such picture" in node.leaf.error for node in failed)
    assert all(None in (node.leaf.proxy, node.leaf.total) for node in failed)


# --- what the update did ---------------------------------------------------------------------------------------------


def naive_log_ratios(trainer, rollout, edges, before, after, level=0.7):
    """Mean over latent dimensions of log N(x') under two networks, one edge and one network call at a time."""
    top, found = float(trainer.session.sigmas[1]), {}
    for e in range(len(edges)):
        o = int(edges.origin[e])
        s, n, prompt = float(edges.sigma[o]), float(edges.sigma_next[o]), int(edges.prompt[o])
        text, densities = rollout.batch.prompts[prompt].text, []
        for network in (after, before):
            with torch.no_grad():
                v = naive_velocity(trainer.session.adapter, network, edges.latents[o], s, text, 1.0)
            step = naive_step(edges.latents[o].double(), v.double(), s, n, top, level)
            densities.append(float(step.log_prob(edges.next_latents[e].double()).mean()))
        found[int(edges.node[e])] = densities[0] - densities[1]
    return found


@pytest.mark.parametrize("objective", ["grpo", "nft, whose old policy lags"])
def test_log_ratios_are_those_of_the_trained_policy_before_and_after(random_sd3, tmp_path, objective):
    """The second iteration's: then the policy that drew nft's samples is neither of the two."""
    data = forest_run(random_sd3, tmp_path, credit={} if "nft" in objective else FUSED)
    data["objective"] = LAGGING if "nft" in objective else {"kind": "grpo", "clip": 0.5}
    data["train"] |= {"learning_rate": 1e-3}
    data["rollout"] |= {"micro_batch": 5}
    data["track"]["trees"] = {"every": 1}
    trainer, run = make_run(data)
    done = trainer.iterate()
    before = copy.deepcopy(trainer.session.policy.inner)
    trees, done, trace = observed(run)
    trees = [tree for tree in trees if tree.iteration == 1]
    naive = naive_log_ratios(trainer, done.samples.rollout, trace.edges, before, trainer.session.policy.inner)
    ways = forest_ways(done.samples.rollout.forest)
    expected = {ways[node]: ratio for node, ratio in naive.items()}
    found = {(p, way(t.nodes, n)): n.log_ratio for p, t in enumerate(trees) for n in t.nodes if n.parent is not None}
    assert found.keys() == expected.keys() and len(found) == 24
    assert max(abs(ratio) for ratio in expected.values()) > 1e-4
    for key, ratio in expected.items():
        assert found[key] == pytest.approx(ratio, rel=2e-2, abs=2e-6), key
    if "nft" in objective:
        asked = trainer.trees.velocities(trace, trainer.encode([Prompt(tree.prompt) for tree in trees]))
        now = trainer.trees.densities(trace, asked)
        wrong = (now - trace.edges.old_log_prob).tolist()
        assert wrong != pytest.approx([naive[node] for node in trace.edges.node.tolist()], rel=2e-2)
        assert len(done.samples.rollout.edges) == 0


class HalfBroken:
    """A decoder that breaks on latents above 5, one of them found after the other."""

    def decode(self, latents):
        broken = (latents.flatten(1).amax(1) > 5).nonzero().flatten().tolist()
        if broken:
            raise BrokenPictureError(broken[:1], len(latents))
        return latents.to(torch.uint8)


def test_a_predicted_picture_that_breaks_is_left_out():
    latents = torch.tensor([1.0, 9, 2, 3, 8, 7, 6, 9, 4]).reshape(9, 1, 1, 1)
    found = decode_whole(HalfBroken(), latents, 3)
    assert [None if image is None else int(image) for image in found] == [1, None, 2, 3, None, None, None, None, 4]
    assert decode_whole(HalfBroken(), latents[:0], 3) == []


def test_first_pictures_are_copies_of_no_more_than_was_asked_for():
    pool = plan_forest(2, 3, {})
    pictures = torch.arange(9, dtype=torch.uint8).reshape(9, 1, 1, 1).expand(9, 3, 2, 2)
    again = torch.tensor([4, 5])
    chosen, batch = Chosen(again, ["", ""], torch.zeros(2, dtype=torch.bool)), PromptBatch([], [], 0)
    for asked, places in ((1, {0, 4}), (2, {0, 1, 4, 5}), (None, set(range(6))), (0, set())):
        tracer = Tracer(2, asked)
        take = tracer.candidates(pool)
        for piece in pictures.split(4):
            take(piece)
        level = Level(0, torch.ones(()), torch.ones(()), pool.leaf, pool.sample_prompt, torch.zeros(6, 2), None, True)
        for observer in tracer.observers(pool):
            observer(level)
        found = tracer.trace(Samples(None, None, Exploration(batch, pool, None), chosen)).proxies
        assert found.keys() == places and all(int(found[place][0, 0, 0]) == place for place in places)
        assert sum(image.untyped_storage().nbytes() for image in found.values()) <= 6 * 12


def test_trees_are_written_one_by_one(random_sd3, tmp_path, monkeypatch):
    """The second tree's pictures are decoded when the first lies on the disk."""
    order, decoded, written = [], keeping.with_images, journal.write_tree
    monkeypatch.setattr(keeping, "with_images", lambda **call: order.append("pictures") or decoded(**call))
    monkeypatch.setattr(journal, "write_tree", lambda *args: order.append("written") or written(*args))
    kept(make_run(forest_run(random_sd3, tmp_path))[1])
    assert order == ["pictures", "written"] * 2
