"""A training sample and its leaf in a kept tree: the picture that lies there alone, and the way to why."""

from __future__ import annotations

import re

import pytest

from diffrl.gallery.records import State
from diffrl.gallery.runs import RunSource
from diffrl.tracking.store import SampleStore, StoredSample
from tests.gallery import made_trees
from tests.gallery.made import make_run


@pytest.fixture
def grown(tmp_path):
    """A run with the forest of iteration 20, group 3; its samples kept no pictures. Another group has no tree."""
    run = make_run(tmp_path / "made")
    tree = made_trees.forest()
    made_trees.write(run, tree)
    with SampleStore(run) as store:
        store.write(
            [
                StoredSample("train", 20, group, node.root, 0, tree.prompt, path=node.leaf.path, total=node.leaf.total)
                for group in (3, 4)
                for node in tree.nodes
                if node.leaf is not None
            ]
        )
    return run, tree


def test_samples_without_a_picture_have_that_of_their_leaf(grown, client_of):
    run, tree = grown
    source, state = RunSource("made", run), State("train", 20)
    briefs = source.briefs(state, "total")
    samples = source.samples(state, [brief.id for brief in briefs])
    leaves = {(node.root, node.leaf.path): node for node in tree.nodes if node.leaf is not None}
    assert len(samples) == 2 * len(leaves) == 32
    for brief, sample in zip(briefs, samples, strict=True):
        _, _, group, root, path = sample.key
        node = leaves[root, tuple(map(int, path.split(".")))]
        if group == 3:
            assert (sample.leaf.tree, sample.leaf.node, sample.total) == ("000020-3", node.id, node.leaf.total)
            assert sample.file == f"trees/000020-3/{node.picture}" and brief.has_image
            assert client_of(run).get(f"/media/made/{sample.file}").status_code == 200
        else:
            assert sample.leaf is sample.file is None and not brief.has_image
    text = client_of(run).get("/compare?columns=made@train-20").text
    links = re.findall(r'href="/tree\?run=made&amp;tree=000020-3#node-(\d+)">why<', text)
    assert sorted(map(int, links)) == sorted(node.id for node in leaves.values())


@pytest.mark.parametrize("damage", ["{", '{"iteration": 20}'])
def test_a_tree_that_cannot_be_read_gives_nothing_and_breaks_nothing(grown, client_of, damage):
    run, _ = grown
    (run / "trees/000020-3/tree.json").write_text(damage)
    answer = client_of(run).get("/compare?columns=made@train-20")
    assert answer.status_code == 200 and ">why<" not in answer.text and "no image kept" in answer.text
