"""Trees whose splits train: their story, drawing, panel, export and report, against one that was reckoned by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from diffrl.gallery.trees.panel import panel, picture_rows, step_rows
from diffrl.gallery.trees.splits import rows, splits, train, weight, why_not

from diffrl.gallery.export import export_site
from diffrl.gallery.sources import find_sources
from diffrl.gallery.trees.figure import tree_figure
from diffrl.gallery.trees.glossary import glossary
from diffrl.gallery.trees.rule import rules
from diffrl.gallery.trees.story import story
from diffrl.gallery.trees.view import tree_view
from tests.gallery import made_trees
from tests.gallery.made_trees import named, tilted, told


def changed(tree, **pushes):
    """The tree with another push at some nodes, "n4" and so on."""
    nodes = [replace(node, pushed=pushes.get(f"n{node.id}", node.pushed)) for node in tree.nodes]
    return replace(tree, nodes=nodes)


def drawn(tree):
    """Classes of the nodes and of the lines, by the id of their node, and the words of the legend."""
    html = str(tree_figure(tree, lambda file: file, interactive=True))
    items = {int(node): css.split() for css, node in re.findall(r'class="node ([^"]*)".*?data-node="(\d+)"', html)}
    lines = {int(node): css.split() for css, node in re.findall(r'class="line ([^"]*)" data-node="(\d+)"', html)}
    return items, lines, html[: html.index('class="box"')]


# --- the story -------------------------------------------------------------------------------------------------------


def test_the_story_tells_of_splits_and_of_nothing_that_did_not_train():
    found = told(tilted())
    assert {"contrast", "credit"}.isdisjoint(found) and found["drawn"]["Images that train"] == "4 of 4"
    assert found["splits"] == {
        "Splits with a direction": "2 of 3",
        "Longest direction, at": "1, noise level 1.00, 0.200 in latent units",
        "Furthest towards": "1aa (+0.46)",
        "Furthest away from": "1ab (−0.23)",
    }
    assert found["decision"]["Best branch of 1a"] == "1aa: value 1.000, weight +1.38, pushed up"
    assert found["decision"]["Worst branch of 1a"] == "1ab: value 0.250, weight −1.38, pushed down"
    assert found["update"]["Predictions that moved along their direction"] == "1 of 2"
    assert found["update"]["The longest direction, at"] == "1: moved 5.0 % of its length, cosine +0.50"
    both = changed(tilted(), n1=replace(tilted().nodes[1].pushed, cosine=0.25))
    assert told(both)["update"]["Predictions that moved along their direction"] == "2 of 2"
    assert list(found["idle"].values()) == ["1"] and list(found["reckoning"]) == ["objective", "nodes"]


def test_its_references_and_pictures_are_those_of_nodes():
    (paragraph,) = [one for one in story(tilted()) if one.key == "splits"]
    assert list(named(tilted(), "splits").values()) == [[], [0], [2], [3]] and paragraph.strip == 0
    without = changed(tilted(), n0=replace(tilted().nodes[0].pushed, before=None, aim=None, after=None))
    (paragraph,) = [one for one in story(without) if one.key == "splits"]
    assert paragraph.strip == 1


@pytest.mark.parametrize(
    ("push", "reason"),
    [
        ({"children": 1, "pulls": {5: 0.0}}, "fewer than two of its branches"),
        ({"children": 0, "pulls": {}}, "fewer than two of its branches"),
        ({"children": 2, "pulls": {5: 0.0, 6: 0.0}}, "the same advantage"),
        ({"children": 2, "pulls": {2: 0.0, 3: 0.0}}, "do not differ"),
    ],
)
def test_why_a_split_does_not_train(push, reason):
    tree = changed(tilted(), n4=replace(tilted().nodes[4].pushed, **push))
    given = tree_view(tree)
    assert reason in why_not(given, tree.nodes[4]) and any(reason in label for label in told(tree)["idle"])
    assert reason in panel(given, str, str)[4]["split"]["says"] and reason in drawn_label(tree, 4)
    assert why_not(given, tree.nodes[0]) == why_not(given, tree.nodes[2]) == ""


def drawn_label(tree, node):
    html = str(tree_figure(tree, lambda file: file, interactive=True))
    return re.search(rf'id="node-{node}".*?class="visually-hidden">([^<]*)<', html, re.S)[1]


def test_what_is_only_pulled_to_the_starting_model_is_told():
    tree = changed(tilted(rule=made_trees.TILT | {"kl": 0.5}), n4=replace(tilted().nodes[4].pushed, trained=True))
    assert told(tree)["idle"]["Splits only pulled to the starting model"] == "1"
    assert "only pulled" in panel(tree_view(tree), str, str)[4]["split"]["says"]
    assert not any("only pulled" in label for label in told(tilted())["idle"])


def test_equal_rewards_teach_no_split():
    flat = replace(tilted().nodes[4].pushed, pulls={})
    tree = tilted()
    nodes = [
        replace(node, value=0.5, advantage=0.0, pushed=node.pushed and flat,
                leaf=node.leaf and replace(node.leaf, total=0.5, advantage=0.0))
        for node in tree.nodes
    ]  # fmt: skip
    found = told(replace(tree, nodes=nodes))
    assert found["idle"] == {"Equal rewards, so advantages are 0: splits": "no credit"}
    assert found["splits"] == {"Splits with a direction": "0 of 3"}


def test_pictures_without_weight_do_not_train():
    level = replace(tilted().nodes[0].pushed, pulls={2: 0.3, 3: -0.3, 5: 0.0, 6: 0.0})
    assert told(changed(tilted(), n0=level))["drawn"]["Images that train"] == "2 of 4"


def test_a_guard_that_left_the_update_out_pushed_nowhere():
    found = told(tilted(rule=made_trees.TILT | {"skipped": 1}))
    assert found["decision"]["Best branch of 1a"].endswith("left out by a guard")
    assert found["drawn"]["Images that train"] == "0 of 4"


def test_trees_of_other_objectives_do_not_speak_of_splits_that_train():
    for tree in (made_trees.forest(), made_trees.pool(), made_trees.chains()):
        given = tree_view(tree)
        assert not train(given) and splits(given) == [] and "splits" not in told(tree)
        assert all(one["split"] is None for one in panel(given, str, str))
        items, _, legend = drawn(tree)
        assert not {"teaches", "silent"} & {css for one in items.values() for css in one} and "split" not in legend
        assert not {"direction", "weight", "aim"} & {word for word, _ in glossary(given)}


# --- the drawing and the panel ---------------------------------------------------------------------------------------


def test_the_drawing_marks_splits_and_shows_weights():
    items, lines, legend = drawn(tilted())
    assert ["teaches" in items[i] for i in range(7)] == [True, True, False, False, False, False, False]
    assert [i for i in items if "silent" in items[i]] == [4]
    # 1a weighs 0.459 - 0.230 at 1, and 1b as much against it; those of 1b have no part in anything
    assert lines[1] == ["up1"] and lines[4] == ["down1"] and lines[2] == ["up3"] and lines[3] == ["down3"]
    assert lines[5] == lines[6] == ["flat", "untrained"]
    assert "weight at the split" in legend and "split trains" in legend and "advantage" not in legend


def test_a_branch_weighs_what_its_pictures_weigh():
    given = tree_view(tilted())
    nodes = given.record.nodes
    assert weight(given, nodes[1]) == pytest.approx(0.229) and weight(given, nodes[4]) == pytest.approx(-0.229)
    assert weight(given, nodes[3]) == -1.376 and weight(given, nodes[0]) is None
    assert {row["name"]: row["weight"] for row in step_rows(given)}["1a"] == "+0.23"
    assert [row["id"] for row in step_rows(given)][:2] == [2, 3]
    assert {row["name"]: row["weights"] for row in picture_rows(given)}["1ab"] == "−1.38 at 1a, −0.23 at 1"


def test_the_panel_of_a_split():
    found = panel(tree_view(tilted()), lambda file: f"small/{file}", lambda file: f"whole/{file}")
    own = found[0]["split"]
    assert [one["label"] for one in own["shots"]] == ["before", "aim", "after"]
    assert [one["picture"] for one in own["shots"]] == [f"whole/{which}-0.webp" for which in ("before", "aim", "after")]
    assert [(end["id"], end["weight"], end["way"]) for end in own["ends"]] == [
        (2, "+0.46", 1), (5, "−0.11", -1), (6, "−0.11", -1), (3, "−0.23", -1)
    ]  # fmt: skip
    assert own["trains"] and own["same"] and not found[1]["split"]["same"]
    facts = dict(own["facts"])
    assert facts["Compared"] == "4 images of 2 branches" and "0.200" in facts["Length of the direction"]
    assert "4.0 % of its length, cosine −0.25" in dict(found[1]["split"]["facts"]).values()
    silent = found[4]["split"]
    assert not silent["trains"] and silent["shots"] == silent["ends"] == []
    assert found[2]["split"] is None
    names = [name for name, _ in found[2]["sample"]]
    assert "Trains by contrast" not in names and dict(found[2]["sample"])["Weight at the split 1a"] == "+1.38"
    assert dict(found[1]["step"])["Weight at the split 1"] == "+0.23"


def test_many_pictures_are_shown_by_their_ends():
    many = {2: 0.9, **dict.fromkeys((3, 5, 6), -0.3)}
    nodes = list(tilted().nodes)
    for i in range(7, 17):
        nodes.append(replace(nodes[6], id=i, child=i))
        many[i] = 0.01 * (i - 11)
    tree = changed(replace(tilted(), nodes=nodes), n0=replace(nodes[0].pushed, pulls=many))
    own = panel(tree_view(tree), str, str)[0]["split"]
    assert len(own["ends"]) + own["more"] == 14 and own["ends"][0]["id"] == 2
    weights = [many[end["id"]] for end in own["ends"]]
    assert weights == sorted(weights, reverse=True) and {3, 5, 6} <= {end["id"] for end in own["ends"]}


def test_numbers_that_are_missing_are_dashes():
    for bare in ({"size": None, "moved": None, "cosine": None}, {"moved": None, "cosine": None}, {"cosine": None}):
        tree = changed(tilted(), n0=replace(tilted().nodes[0].pushed, **bare))
        assert (
            len(rows(tree_view(tree))) == 3
            and told(tree)["splits"]
            and panel(tree_view(tree), str, str)[0]["split"]["facts"]
        )


def test_the_rule_and_the_words_are_explained():
    given = tree_view(tilted())
    said = dict(rules(given))
    assert "splits train" in said["nodes"] and "tree tilt" in said["objective"]
    words = dict(glossary(given))
    assert {"direction", "weight", "aim", "cosine"} <= words.keys() and "more likely" not in words["advantage"]


# --- pages -----------------------------------------------------------------------------------------------------------


def test_the_page_serves_the_pictures_of_splits(client_of, made):
    made_trees.write(made, tilted())
    client = client_of(made)
    text = client.get("/tree?tree=000020-3").text
    for which in ("before", "aim", "after"):
        address = f"/media/made/trees/000020-3/{which}-0.webp"
        assert address in text and client.get(address).headers["content-type"] == "image/webp"
    assert 'id="all-splits"' in text and "weight at splits" in text and "trains by contrast" not in text
    assert 'id="all-splits"' not in client.get("/trees").text


@pytest.mark.long
def test_the_exported_page_carries_them(made, tmp_path):
    made_trees.write(made, tilted())
    export_site(find_sources([made]), tmp_path / "site", {"votes": tmp_path / "votes.jsonl"})
    text = (tmp_path / "site/tree-made-000020-3.html").read_text("utf-8")
    named = [re.search(rf'"label": "{which}", "picture": "([^"]+)"', text)[1] for which in ("before", "aim", "after")]
    assert len(set(named)) == 3 and all((tmp_path / "site" / name).is_file() for name in named)


def test_the_report_shows_the_longest_direction(client_of, made):
    made_trees.write(made, tilted())
    text = client_of(made).get("/report").text
    strip = text[text.index('class="pushed"') :]
    assert [strip.index(f'alt="{which}"') for which in ("before", "aim", "after")] == sorted(
        strip.index(f'alt="{which}"') for which in ("before", "aim", "after")
    )
    assert strip.count("data:image/webp", 0, strip.index("</div>")) == 3
