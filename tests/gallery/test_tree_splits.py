"""Trees whose splits train: their story, drawing, panel, export and report, against one that was reckoned by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from diffrl.gallery.trees.facts import describe, sample_facts, split_facts, step_facts, tables
from diffrl.gallery.trees.figure import panel, tree_figure
from diffrl.gallery.trees.glossary import glossary
from diffrl.gallery.trees.story import story
from diffrl.gallery.trees.view import tree_view
from tests.gallery import made_trees
from tests.gallery.made_trees import named, said, tilted, told


def changed(tree, **pushes):
    """The tree with another push at some nodes, "n4" and so on."""
    nodes = [replace(node, update_effect=pushes.get(f"n{node.id}", node.update_effect)) for node in tree.nodes]
    return replace(tree, nodes=nodes)


def figure_of(tree):
    """Nodes of the figure by their ids, and its legend."""
    figure = tree_figure(tree_view(tree), str)
    return {node["id"]: node for node in figure["nodes"]}, figure["legend"]


def panel_of(tree):
    return panel(tree_view(tree), lambda file: f"small/{file}", lambda file: f"whole/{file}", lambda file: None)


# --- the story -------------------------------------------------------------------------------------------------------


def test_the_story_tells_of_splits_and_of_nothing_that_did_not_train():
    found = told(tilted())
    assert {"contrast", "credit"}.isdisjoint(found) and found["sampled"]["Images that train"] == "4 of 4"
    assert found["splits"] == {
        "Splits that train along their direction": "2 of 3",
        "Longest directions, at": "1 (noise level 1.00, 0.200 in latent units), "
        "1a (noise level 0.50, 0.100 in latent units)",
    }
    assert found["decision"]["Best branch"] == "1aa: value 1.000, weight +1.38, pushed up"
    assert found["decision"]["Worst branch"] == "1ab: value 0.250, weight −1.38, pushed down"
    assert found["update"]["Predictions that moved along their direction"] == "1 of 2"
    assert found["update"]["Longest directions, at"].startswith("1 (moved 5.0 % of that length, cosine +0.50), 1a (")
    both = changed(tilted(), n1=replace(tilted().nodes[1].update_effect, cosine=0.25))
    assert told(both)["update"]["Predictions that moved along their direction"] == "2 of 2"
    assert list(found["idle"].values()) == ["1"] and {"objective", "nodes"} <= found["reckoning"].keys()


def test_its_references_and_pictures_are_those_of_nodes():
    (paragraph,) = [one for one in story(tree_view(tilted())) if one.key == "splits"]
    assert list(named(tilted(), "splits").values()) == [[], [0, 1]] and paragraph.strip == 0
    without = changed(tilted(), n0=replace(tilted().nodes[0].update_effect, before=None, aim=None, after=None))
    (paragraph,) = [one for one in story(tree_view(without)) if one.key == "splits"]
    assert paragraph.strip == 1


@pytest.mark.parametrize(
    ("push", "reason"),
    [
        ({"children": 1, "pulls": {5: 0.0}}, "fewer than two of its branches"),
        ({"children": 0, "pulls": {}}, "fewer than two of its branches"),
        ({"children": 2, "pulls": {5: 0.0, 6: 0.0}}, "the same advantage"),
        ({"children": 2, "pulls": {2: 0.0, 3: 0.0}}, "do not differ"),
        ({"size": 0.3, "pulls": {5: 0.2, 6: -0.2}}, "others of the prompt were chosen"),
    ],
)
def test_why_a_split_does_not_train(push, reason):
    tree = changed(tilted(), n4=replace(tilted().nodes[4].update_effect, **push))
    view = tree_view(tree)
    assert any(reason in label for label in told(tree)["idle"])
    assert reason in said(split_facts(view, tree.nodes[4]))["Why not"]
    assert reason in describe(view, tree.nodes[4]) and "Why not" not in said(split_facts(view, tree.nodes[0]))


def test_what_is_only_pulled_to_the_starting_model_is_told():
    tree = changed(
        tilted(rule=made_trees.TILT | {"kl": 0.5}), n4=replace(tilted().nodes[4].update_effect, trained=True)
    )
    assert told(tree)["idle"]["Splits only pulled to the starting model"] == "1"
    assert "only pulled" in said(split_facts(tree_view(tree), tree.nodes[4]))["Trains"]
    assert not any("only pulled" in label for label in told(tilted())["idle"])


def test_equal_rewards_teach_no_split():
    flat = replace(tilted().nodes[4].update_effect, pulls={})
    tree = tilted()
    nodes = [
        replace(node, value=0.5, advantage=0.0, update_effect=node.update_effect and flat,
                leaf=node.leaf and replace(node.leaf, total=0.5, advantage=0.0))
        for node in tree.nodes
    ]  # fmt: skip
    found = told(replace(tree, nodes=nodes))
    assert found["idle"] == {"Equal rewards, so advantages are 0: splits": "no credit"}
    assert found["splits"] == {"Splits that train along their direction": "0 of 3"}


def test_a_guard_that_left_the_update_out_pushed_nowhere():
    found = told(tilted(rule=made_trees.TILT | {"skipped": 1}))
    assert found["decision"]["Best branch"].endswith("left out by a guard")
    assert found["sampled"]["Images that train"] == "0 of 4"


def test_trees_of_other_objectives_do_not_speak_of_splits_that_train():
    for tree in (made_trees.forest(), made_trees.pool(), made_trees.chains()):
        nodes, legend = figure_of(tree)
        assert "splits" not in told(tree) and not legend["splits"]
        assert [table.key for table in tables(tree_view(tree))][-1] == "images"
        assert all(one["split"] is None for one in panel_of(tree))
        assert not {"teaches", "silent"} & {word for node in nodes.values() for word in node["kind"].split()}
        assert not {"direction", "weight", "aim"} & {word for word, _ in glossary(tree_view(tree))}


# --- the drawing and the panel ---------------------------------------------------------------------------------------


def test_the_figure_marks_splits_and_shows_weights():
    nodes, legend = figure_of(tilted())
    assert [i for i in range(7) if "teaches" in nodes[i]["kind"]] == [0, 1]
    assert [i for i in range(7) if "silent" in nodes[i]["kind"]] == [4]
    # 1a weighs 0.459 - 0.230 at 1, and 1b as much against it; those of 1b have no part in anything
    lines = [nodes[i]["line"] for i in range(1, 7)]
    assert lines == ["up1", "up3", "down3", "down1", "flat untrained", "flat untrained"]
    assert legend["splits"] and legend["silent"]


def test_a_branch_weighs_what_its_pictures_weigh():
    view = tree_view(tilted())
    nodes = view.record.nodes
    assert view.weight(nodes[1]) == pytest.approx(0.229) and view.weight(nodes[4]) == pytest.approx(-0.229)
    assert view.weight(nodes[3]) == -1.376 and view.weight(nodes[0]) is None
    assert said(step_facts(view, nodes[1]))["Weight"] == "+0.23 at the split 1"
    assert said(sample_facts(view, nodes[3]))["Weight"] == "−1.38 at 1a, −0.23 at 1"
    steps, splits, images = tables(view)
    assert [id for id, _ in steps.rows][:2] == [2, 3] and [id for id, _ in splits.rows] == [0, 1, 4]
    assert "Weight" in images.columns and "Trains by contrast" not in images.columns


def test_the_panel_of_a_split():
    found = panel_of(tilted())
    own = found[0]["split"]
    assert [one["label"] for one in own["shots"]] == ["before", "aim", "after"]
    files = [one["image"]["file"] for one in own["shots"]]
    assert files == [f"whole/{which}-0.webp" for which in ("before", "aim", "after")]
    assert [(end["id"], end["weight"], end["way"]) for end in own["ends"]] == [
        (2, "+0.46", 1), (5, "−0.11", -1), (6, "−0.11", -1), (3, "−0.23", -1)
    ]  # fmt: skip
    assert own["trains"] and own["same"] and not found[1]["split"]["same"]
    facts = said(own["facts"])
    assert facts["Compared"] == "4 images of 2 branches" and "0.200" in facts["Length of the direction"]
    facts = said(found[1]["split"]["facts"])
    assert (facts["Moved"], facts["Cosine"]) == ("4.0 % of that length", "−0.25")
    silent = found[4]["split"]
    assert not silent["trains"] and silent["shots"] == silent["ends"] == []
    assert found[2]["split"] is None


def test_many_pictures_are_shown_by_their_ends():
    many = {2: 0.9, **dict.fromkeys((3, 5, 6), -0.3)}
    nodes = list(tilted().nodes)
    for i in range(7, 17):
        nodes.append(replace(nodes[6], id=i, child=i))
        many[i] = 0.01 * (i - 11)
    tree = changed(replace(tilted(), nodes=nodes), n0=replace(nodes[0].update_effect, pulls=many))
    own = panel_of(tree)[0]["split"]
    assert len(own["ends"]) + own["more"] == 14 and own["ends"][0]["id"] == 2
    weights = [many[end["id"]] for end in own["ends"]]
    assert weights == sorted(weights, reverse=True) and {3, 5, 6} <= {end["id"] for end in own["ends"]}


def test_numbers_that_are_missing_are_dashes():
    for bare in ({"size": None, "moved": None, "cosine": None}, {"moved": None, "cosine": None}, {"cosine": None}):
        tree = changed(tilted(), n0=replace(tilted().nodes[0].update_effect, **bare))
        assert len(tables(tree_view(tree))[1].rows) == 3 and told(tree)["splits"]
        assert "Compared" in said(split_facts(tree_view(tree), tree.nodes[0]))


# --- pages -----------------------------------------------------------------------------------------------------------


def test_the_page_serves_the_pictures_of_splits(client_of, made):
    made_trees.write(made, tilted())
    client = client_of(made)
    text = client.get("/tree?tree=000020-3").text
    for which in ("before", "aim", "after"):
        address = f"/media/made/trees/000020-3/{which}-0.webp"
        assert address in text and client.get(address).headers["content-type"] == "image/webp"
    assert 'id="all-splits"' in text and "<th>Weight</th>" in text and "Trains by contrast" not in text
    assert 'id="all-splits"' not in client.get("/trees").text


def test_the_report_shows_the_longest_direction(client_of, made):
    made_trees.write(made, tilted())
    text = client_of(made).get("/report").text
    strip = text[text.index('class="pushed"') :]
    assert [strip.index(f'alt="{which}"') for which in ("before", "aim", "after")] == sorted(
        strip.index(f'alt="{which}"') for which in ("before", "aim", "after")
    )
    assert strip.count("data:image/webp", 0, strip.index("</div>")) == 3
