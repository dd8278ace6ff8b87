"""The decision that mattered most: its sentences, the pictures that stand for it, and the words that it uses."""

from __future__ import annotations

import re
from dataclasses import replace

from diffrl.gallery.trees.facts import sample_facts
from diffrl.gallery.trees.story import story
from diffrl.gallery.trees.view import tree_view
from diffrl.trees.record import TreeLeaf, TreeNode
from tests.gallery import made_trees
from tests.gallery.made_trees import leaf, said, split, told


def decided(tree):
    (section,) = [section for section in story(tree_view(tree)) if section.key == "decision"]
    return section


def test_finished_pictures_stand_for_the_branches():
    """Of the better branch the best, of the worse one the worst."""
    tree = made_trees.forest()  # at the fourth noise 1.0 and 0.5 against 0.5 and a picture that could not be scored
    nodes = [replace(n, value=2.0) if n.id == 22 else n for n in tree.nodes]
    found = decided(replace(tree, nodes=nodes))
    assert [tree_view(tree).names[node] for node in found.shown] == ["4aa", "4ba"]
    assert found.note == "Shown: the best image of 4a and the worst image of 4b."
    lone = decided(split({}, {}))
    assert (lone.shown, lone.note) == ([1, 2], "")
    failed = split({}, {"leaf": leaf(None)})  # its value is known, its picture has no reward
    nothing = decided(failed)
    assert (nothing.shown, nothing.note) == ((), "")


def test_what_the_losing_branch_lacks_begins_with_the_cause_and_says_what_it_leaves_out():
    names = ("colour", "shape", "binding", "count", "relation", "clean")
    worse = {**dict.fromkeys(names, 0.0), "count": 0.5, "clean": 1.0}
    ends = [{"leaf": leaf(1.0, rewards={f"r/{name}": parts[name] for name in names})} for parts in (
        dict.fromkeys(names, 1.0), worse,
    )]  # fmt: skip
    assert told(split(*ends))["decision"]["What 1b lacks"] == (
        "count 0.500 against 1.000, colour 0.000 against 1.000, shape 0.000 against 1.000, 2 more"
    )


def test_finished_pictures_show_the_decision(client_of, made):
    tree = made_trees.forest()
    made_trees.write(made, tree)
    text = client_of(made).get("/tree?run=made&tree=000020-3").text
    block = re.search(r'<div class="versus item"[^>]*>(.*?)</div>\s*<p[^>]*>([^<]*)</p>', text, re.S)
    assert re.findall(r"node-(\d+)\.webp\?size=256", block[1]) == ["9", "12"]  # 2a against 2b, by their pictures
    captions = re.findall(r"<figcaption>\s*(.*?)\s*</figcaption>", block[1], re.S)
    assert [re.sub("<[^>]*>", "", caption) for caption in captions] == ["2aa 1.000 ✓", "2ba 0.250 ✗"]
    assert 'title="not passed"' in captions[1] and 'href="#node-12" data-ref="12"' in captions[1]
    assert block[2] == "Shown: the best image of 2a and the worst image of 2b."
    bare = [replace(n, leaf=n.leaf and replace(n.leaf, rewards={"r": n.leaf.total})) for n in tree.nodes]
    bare = [replace(n, picture=None) if n.id == 8 else n for n in bare]  # an inner node's picture is not needed
    made_trees.write(made, made_trees.record(bare, iteration=21))
    text = client_of(made).get("/tree?run=made&tree=000021-3").text
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", text, re.S)
    assert [re.sub("<[^>]*>", "", caption).strip() for caption in captions] == ["2aa 1.000", "2ba 0.250"]


def test_a_choice_among_equals_is_said():
    """Of four that tie at the top two are kept."""
    proxies = [1.0, 1.0, 1.0, 1.0, 0.5, 0.5, 0.4, 0.3, 0.2, 0.1]
    reasons = {0: "best 1", 1: "best 2", 8: "worst 2", 9: "worst 1"}
    truths = {0: 0.9, 1: 0.4, 8: 0.9, 9: 0.1}
    nodes = [
        TreeNode(
            place, None, place, 0, None, 1.0, place in reasons, truths.get(place),
            leaf=TreeLeaf((), proxy, None, reasons.get(place), total=truths.get(place)),
        )
        for place, proxy in enumerate(proxies)
    ]  # fmt: skip
    explored = {**made_trees.EXPLORED, "candidates": 10, "keep": 4, "audit": 0}
    given = tree_view(made_trees.record(nodes, branching={}, rule=made_trees.NFT, explored=explored))
    proxies = [said(sample_facts(given, node))["Proxy reward"] for node in nodes]
    assert proxies[0] == "1.000, 1 of 10, level with 3 others" and proxies[4] == "0.500, 5 of 10, level with 1 other"
    assert proxies[9] == "0.100, 10 of 10"
