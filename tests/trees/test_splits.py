"""What kept trees say of splits that train by tree tilt: against loops over the rollout's own latents and networks."""

import copy
import itertools
import math

import pytest
import torch

import diffrl.training.update as update
import diffrl.trees.images as tree_images
from diffrl.models.images import BrokenPictureError
from diffrl.trees.record import EFFECT_IMAGES
from tests.tiers import daily
from tests.training.harness import EXPLORE, FOREST, make_run
from tests.training.test_gradient import naive_velocity
from tests.trees.test_document import WIDE, above, forest_ways, kept, leaves, observed, picture, way
from tests.trees.test_recorder import forest_run

TILT = {"kind": "tilt"}
THREE = FOREST | {"tree": {"roots": 2, "branches": 3, "splits": [0, 2]}}
WIDE_THREE = THREE | {"explore": EXPLORE | {"steps": None, "candidates": 36, "keep": 18}}
BETWEEN = {"stochastic": {"kind": "window", "start": 0, "size": 4}, "tree": {"roots": 2, "splits": [1, 3]}}
PRUNED = {"prune": {"width": "extremes", "best": 1}}
ROLLOUTS = {
    "explored": (WIDE_THREE, {}),
    "pruned": (THREE, PRUNED),
    "noise without a split": (BETWEEN, {}),
}


def tilted(pipeline, directory, rollout=FOREST, credit=None, objective=TILT, **changes):
    data = forest_run(pipeline, directory, rollout, credit or {}, **changes)
    data["objective"] = objective
    data["train"] |= {"learning_rate": 1e-3, "updates_per_iteration": 1}
    return data


def naive_direction(done, row, kept_edges):
    """C of a node of the rollout, pair by pair; samples that are in a pair; the number of children they are below."""
    rollout, credit = done.samples.rollout, done.credit
    forest, sides = rollout.forest, {}
    for sample, leaf in enumerate(forest.leaf.tolist()):
        node = leaf
        while node >= 0 and int(forest.parent[node]) != row:
            node = int(forest.parent[node])
        if node >= 0 and credit.used[sample] and kept_edges[node]:
            sides.setdefault(node, []).append(sample)
    total, count = torch.zeros(rollout.latents.shape[1:], dtype=torch.float64), 0
    for one, other in itertools.permutations(sides, 2):
        for a, b in itertools.product(sides[one], sides[other]):
            gap = float(credit.outcome[a]) - float(credit.outcome[b])
            total += gap * (rollout.latents[a].double() - rollout.latents[b].double()) / 2
            count += 1
    return total / max(count, 1), {int(forest.leaf[s]) for side in sides.values() for s in side}, len(sides)


def origins_of(done, trace):
    """Latents, noise level and prompt at which each node of the rollout splits."""
    edges, forest = trace.edges, done.samples.rollout.forest
    found = {}
    for edge in range(len(edges)):
        o, parent = int(edges.origin[edge]), int(forest.parent[edges.node[edge]])
        found[parent] = (edges.latents[o], float(edges.sigma[o]), int(edges.prompt[o]))
    return found


def rms(tensor):
    return math.sqrt(float(tensor.double().square().mean()))


@pytest.mark.parametrize("name", daily(ROLLOUTS, ["pruned"]))
def test_a_split_says_what_it_asked_for_and_what_became_of_it(random_sd3, tmp_path, name):
    """The second iteration's, so that the policy that drew is not the one that the run began with."""
    rollout, credit = ROLLOUTS[name]
    data = tilted(random_sd3, tmp_path, rollout, credit)
    data["track"]["trees"] = {"every": 1}
    trainer, run = make_run(data)
    done = trainer.iterate()
    before = copy.deepcopy(trainer.session.policy.inner)
    trees, done, trace = observed(run)
    adapter, after = trainer.session.adapter, trainer.session.policy.inner
    drawn = done.samples.rollout
    rows = {key: row for row, key in enumerate(forest_ways(drawn.forest))}
    kept_edges, origins = trainer.crediting.grad_mask(done.samples, done.credit), origins_of(done, trace)
    seen, moved_along = 0, 0.0
    for prompt, tree in enumerate(trees):
        below = tree.children()
        parents = [node for node in tree.nodes if any(child.sampled for child in below.get(node.id, ()))]
        splits = {node.id for node in parents if tree.branching[below[node.id][0].step] > 1}
        assert {node.id for node in tree.nodes if node.update_effect} == splits and tree.rule["nodes"] is True
        for node in (tree.nodes[i] for i in splits):
            row = rows[prompt, way(tree.nodes, node)]
            direction, compared, children = naive_direction(done, row, kept_edges)
            x, sigma, where = origins[row]
            text = drawn.batch.prompts[where].text
            with torch.no_grad():
                clean = [x - sigma * naive_velocity(adapter, net, x, sigma, text, 1.0) for net in (before, after)]
            own, moved = node.update_effect, (clean[1] - clean[0]).double()
            assert where == prompt and own.sigma == pytest.approx(sigma)
            assert own.size == pytest.approx(rms(direction), rel=1e-4, abs=1e-9)
            assert own.trained == (rms(direction) > 0) and own.children == children
            assert {rows[prompt, way(tree.nodes, tree.nodes[leaf])] for leaf in own.pulls} == compared
            assert own.moved == pytest.approx(rms(moved), rel=2e-2)
            if own.trained:
                cosine = float((direction * moved).sum() / direction.norm() / moved.norm())
                assert own.cosine == pytest.approx(cosine, abs=2e-2)
                moved_along += float((direction * moved).sum()) / rms(direction)
                wanted = [clean[0], clean[0] + own.eta * direction.float(), clean[1]]
                for which, latents in zip(EFFECT_IMAGES, wanted, strict=True):
                    shown = picture(run.journal.run_dir, tree, getattr(own, which)).float()
                    assert float((shown - adapter.decode(latents[None])[0].float()).abs().max()) <= 1, which
            else:
                assert (own.cosine, own.before, own.aim, own.after) == (None,) * 4
            # The direction is the sum of the samples by their weights.
            own_latents = {rows[prompt, way(tree.nodes, tree.nodes[leaf])]: w for leaf, w in own.pulls.items()}
            summed = sum(
                (own_latents[leaf] * drawn.latents[s].double() for s, leaf in enumerate(drawn.forest.leaf.tolist())
                 if leaf in own_latents),
                torch.zeros_like(direction),
            )  # fmt: skip
            torch.testing.assert_close(summed, direction, atol=1e-5, rtol=1e-4)
            seen += own.trained
        assert all(set(node.update_effect.pulls) <= {end.id for end in leaves(tree) if node.id in above(tree, end)}
                   for node in tree.nodes if node.update_effect)  # fmt: skip
    assert seen >= 4 or name == "pruned"
    assert moved_along > 0 or not seen  # one update serves all splits: single ones may lose by it


@pytest.mark.parametrize(("kl", "nodes"), daily([(0.3, None), (0.0, {"keep": 2})], [(0.3, None)]))
def test_what_trained_is_what_the_loss_was_given(random_sd3, tmp_path, monkeypatch, kl, nodes):
    """The nodes of every gradient are spied on; some of their samples cannot be scored."""
    reward = [{"name": "tests.training.scorers:Flaky", "options": {"how": "report"}}]
    objective = TILT | {"kl": kl, "nodes": nodes}
    trainer, run = make_run(tilted(random_sd3, tmp_path, WIDE, objective=objective, rewards=reward))
    given, accumulate = {}, update.accumulate_gradient

    def spied(*, shares, **rest):
        ((_, examples, index),) = shares
        taken = examples.take(index[examples.active[index]])
        given.update(zip(taken.node.tolist(), map(rms, taken.direction), strict=True))
        return accumulate(shares=shares, **rest)

    monkeypatch.setattr(update, "accumulate_gradient", spied)
    trees, done, _ = observed(run)
    ways = forest_ways(done.samples.rollout.forest)
    found = {(p, way(t.nodes, n)): n.update_effect.size for p, t in enumerate(trees) for n in t.nodes
             if n.update_effect and n.update_effect.trained}  # fmt: skip
    assert found == pytest.approx({ways[node]: size for node, size in given.items()}, rel=1e-6) and found
    assert all(not node.trained and not (node.leaf and node.leaf.trained) for tree in trees for node in tree.nodes)
    assert any(size == 0 for size in found.values()) == (kl > 0)


@pytest.mark.parametrize("limit", daily([3, 9], [9]))
def test_pictures_of_splits_count_as_pictures(random_sd3, tmp_path, limit):
    data = tilted(random_sd3, tmp_path, THREE)
    data["track"]["trees"] = {"pictures": limit, "prompts": 1}
    (tree,) = kept(make_run(data)[1])
    inner = [node for node in tree.nodes if node.picture and not node.leaf]
    shown = [node for node in tree.nodes if node.update_effect and node.update_effect.aim]
    assert len(inner) + 3 * len(shown) == limit and len(shown) == limit // 4
    assert all(node.update_effect.before and node.update_effect.after and node.picture for node in shown)
    best = max(leaves(tree), key=lambda node: node.leaf.total)
    assert {node.id for node in inner[:1]} <= above(tree, best)


def test_objectives_without_splits_say_nothing_of_them(random_sd3, tmp_path):
    for tree in kept(make_run(forest_run(random_sd3, tmp_path))[1]):
        assert all(node.update_effect is None for node in tree.nodes) and tree.rule["nodes"] is False


def test_an_aim_that_cannot_be_decoded_is_left_out(random_sd3, tmp_path, monkeypatch):
    """A direction leads where no picture was: the decoder may break there, and the run goes on."""
    decode_whole, (trainer, run) = tree_images.decode_whole, make_run(tilted(random_sd3, tmp_path, THREE))

    class Broken:
        def decode(self, latents):
            if len(latents) == 3:
                raise BrokenPictureError([1], 3)
            return trainer.session.adapter.decode(latents)

    monkeypatch.setattr(tree_images, "decode_whole", lambda adapter, *rest: decode_whole(Broken(), *rest))
    trees = kept(run)
    pushed = [
        node.update_effect for tree in trees for node in tree.nodes if node.update_effect and node.update_effect.trained
    ]
    assert pushed and all(own.before and own.after and own.aim is None for own in pushed)


def test_the_examples_are_made_once(random_sd3, tmp_path, monkeypatch):
    trainer, run = make_run(tilted(random_sd3, tmp_path))
    (part,), made = trainer.session.losses, []
    examples = type(part.objective).examples
    monkeypatch.setattr(type(part.objective), "examples", lambda *args: made.append(args) or examples(*args))
    kept(run)
    assert len(made) == 1
