"""The pages of trees, without a browser."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace

import pytest

from diffrl.gallery.links import ServerLinks
from diffrl.gallery.pages.trees import neighbours
from diffrl.gallery.query import Query
from diffrl.gallery.report import STATIC
from diffrl.gallery.site import Site
from diffrl.gallery.sources import find_sources
from diffrl.gallery.trees.facts import tables
from diffrl.gallery.trees.figure import tree_figure
from diffrl.gallery.trees.view import tree_view
from tests.gallery import made_trees
from tests.gallery.made import Elements

HOSTILE = '<script>alert("x")</script>\' & \u202egnirts ' + "long " * 2000


def items(text: str) -> dict[int, dict[str, str | None]]:
    """The tree's items by the id of their node."""
    return {
        int(found["data-node"] or ""): found for _, found in Elements(text).found if found.get("role") == "treeitem"
    }


def test_the_list_shows_every_tree(client_of, made):
    made_trees.write(made, made_trees.forest())
    made_trees.write(made, made_trees.pool(iteration=21))
    text = client_of(made).get("/trees").text
    assert text.index("Iteration 21") < text.index("Iteration 20")
    assert "rewards 0.250 to 1.000 · 4 of 15 passed · 16 images, 24 steps · ◆ 2 turning<" in text
    assert "/tree?run=made&amp;tree=000020-3" in text
    assert "/media/made/trees/000020-3/node-2.webp?size=128" in text  # the best, and the worst:
    assert "/media/made/trees/000020-3/node-19.webp?size=128" in text


def test_a_run_without_trees_says_how_to_get_them(client_of, made):
    client = client_of(made)
    assert "track.trees" in client.get("/trees").text
    answer = client.get("/tree")
    assert answer.status_code == 404 and "track.trees" in answer.text


def test_the_list_has_pages_and_the_exported_one_has_all(client_of, made):
    for iteration in range(26):
        made_trees.write(made, made_trees.pool(2, 2, 0, iteration=iteration))
    client = client_of(made)
    assert client.get("/trees").text.count('class="about"') == 24
    assert client.get("/trees?page=2").text.count('class="about"') == 2
    assert client.get("/trees?page=3").status_code == 400

    class Exported(ServerLinks):
        exported = True

    body = Site(find_sources([made]), Exported("test")).answer("trees", Query({})).body
    assert str(body).count('class="about"') == 26 and "page=2" not in str(body)


def test_the_tree_page_says_what_the_record_says(client_of, made):
    made_trees.write(made, made_trees.forest())
    answer = client_of(made).get("/tree?run=made&tree=000020-3")
    assert answer.status_code == 200
    found = items(answer.text)
    assert len(found) == 28
    assert found[8]["title"] == (
        "Node 2a, step 1 of 4, noise level 1.00 → 0.75, value before 0.625, value 1.000, step reward +0.375, "
        "credited +0.750, advantage +1.12, turning point yes ◆, trains yes, change of log-likelihood +0.00047"
    )
    assert found[3]["title"].startswith("Image 1ab, reward 0.250, advantage −0.60, trains by contrast yes, ")
    assert "reward failed" in found[27]["title"] and ", trains yes" not in found[27]["title"]
    assert (found[8]["aria-level"], found[8]["aria-posinset"], found[8]["aria-setsize"]) == ("2", "1", "2")
    assert "failed" in (found[27]["class"] or "")
    assert [number for number, one in found.items() if one["tabindex"] == "0"] == [0]
    assert "Steps pushed up most" in answer.text and 'href="#node-8" data-ref="8"' in answer.text


LINE = r'<li role="none" class="([^"]*)" style[^>]*>\s*<a [^>]*id="node-(\d+)"'


def test_lines_have_the_colour_and_the_width_of_their_advantage(client_of, made):
    made_trees.write(made, made_trees.forest())
    text = client_of(made).get("/tree?tree=000020-3").text
    lines = {int(node): css for css, node in re.findall(LINE, text)}
    assert (lines[8], lines[11], lines[1], lines[2]) == ("up3", "down3", "up1", "up2")
    assert lines[15] == lines[27] == "flat untrained"  # an advantage of 0, whatever is why, is no push
    chips = dict(
        re.findall(r'<span class="chip-a (\w+)[^"]*"[^>]*>(?:<span class="diamond"[^>]*>◆</span>)?([^<]+)</span>', text)
    )
    assert chips["up3"] == "+1.12" and chips["down3"] == "−1.12" and chips["flat"] == "0"


def test_exact_zeros_and_rounding_zeros_look_alike():
    tree = made_trees.forest()
    lines = []
    for zero, trained in ((0.0, False), (-3e-8, True)):
        nodes = [replace(node, advantage=zero, trained=trained) if node.id in (15, 16) else node for node in tree.nodes]
        figure = tree_figure(tree_view(replace(tree, nodes=nodes)), str)
        lines.append({node["id"]: node["line"] for node in figure["nodes"]})
    assert lines[0] == lines[1] and lines[0][15] == "flat untrained"


def test_the_first_images_are_those_of_what_was_sampled():
    asked: list[str] = []
    tree_figure(tree_view(made_trees.wide_forest(4)), lambda file: asked.append(file) or "data:,")
    kinds = ["node" if name.startswith("node") else "proxy" for name in asked]
    assert kinds == ["node"] * 5 + ["proxy"] * 16  # 1 noise, 2 branches, 2 images; then all candidates
    assert asked[5:7] == ["proxy-2.webp", "proxy-6.webp"]  # of those, first the ones that were generated again


def test_reasons_name_nodes_as_the_figure_does(client_of, made):
    made_trees.write(made, made_trees.wide_forest(4))
    text = client_of(made).get("/tree?tree=000020-3").text
    assert "split at 1: gap 0.41, better side" in text and "node 0" not in text
    tree = made_trees.wide_forest(4)
    nodes = [replace(n, leaf=replace(n.leaf, chosen="split at node 4: gap 1") if n.leaf else None) for n in tree.nodes]
    assert tree_view(replace(tree, nodes=nodes)).reason(nodes[2]) == "split at 1b: gap 1"
    strange = replace(nodes[2], leaf=replace(nodes[2].leaf, chosen=f"split at node {'9' * 9}"))
    assert tree_view(tree).reason(strange) == f"split at node {'9' * 9}"


def test_pools_show_both_pictures_and_why(client_of, made):
    made_trees.write(made, made_trees.pool(6, 4, 1))
    text = client_of(made).get("/tree?tree=000020-3").text
    assert text.count('class="node leaf idle"') == 1 and text.count('class="node leaf"') == 5
    found = items(text)
    assert found[5]["title"].startswith(
        "Image 6, reward 0.900, advantage +0.80, trains by contrast yes, proxy reward 1.000, generated again best 1, "
    )
    assert found[2]["title"] == "Candidate 3, only explored, proxy reward 0.400"
    assert "trees/000020-3/proxy-5.webp" in text and "trees/000020-3/node-5.webp" in text
    data = json.loads(re.search(r'id="tree-facts">(.*?)</script>', text, re.S)[1])
    assert ["Generated again", "audit", ""] in data[3]["sample"] and "Audit" in [one[0] for one in data[3]["sample"]]
    assert data[2]["image"] is None and data[2]["proxy"]["file"].endswith("proxy-2.webp")


def test_a_pool_shows_what_was_sampled_first_and_the_best_of_it_first():
    nodes = tree_figure(tree_view(made_trees.pool()), str)["nodes"]
    sampled = [node["sampled"] for node in nodes]
    assert sampled == sorted(sampled, reverse=True)
    for one, other in itertools.pairwise(nodes):
        if one["sampled"] == other["sampled"]:
            assert float(one["reward"] or one["proxy"]) >= float(other["reward"] or other["proxy"])


@pytest.mark.parametrize("tree", [made_trees.forest(), made_trees.wide_forest(), made_trees.chains()])
def test_lists_of_the_figure_hold_the_children_of_their_node(tree):
    """Each node stands in the list of its parent, in the order of the branches; all lists end."""
    nodes = tree_figure(tree_view(tree), str)["nodes"]
    path: list[int] = []
    for node in nodes:
        assert (path[-1] if path else None) == tree.nodes[node["id"]].parent
        assert node["depth"] == len(path)
        if any(other.parent == node["id"] for other in tree.nodes):
            path.append(node["id"])
        else:
            path = path[: len(path) - node["closes"]]
    assert path == [] and sorted(node["id"] for node in nodes) == list(range(len(tree.nodes)))


def test_tables_hold_all_steps_and_all_pictures(client_of, made):
    made_trees.write(made, made_trees.forest())
    text = client_of(made).get("/tree?tree=000020-3").text
    steps, images = (table for table in tables(tree_view(made_trees.forest())))
    sizes = [abs(float(cells[steps.columns.index("Advantage")].replace("−", "-"))) for _, cells in steps.rows]
    assert len(sizes) == 24 and sizes == sorted(sizes, reverse=True) and sizes[0] == 1.12
    assert text.count('<tr id="steps-') == 24 and text.count('<tr id="images-') == 16
    rewards = [cells[0] for _, cells in images.rows]
    assert rewards[0] == "1.000" and rewards[-1] == "failed" and "shapes: no object found" in images.rows[-1][1]


@pytest.mark.parametrize("name", ["000099-0", "nonsense", "../../made", "20-3"])
def test_unknown_trees_are_a_sentence(client_of, made, name):
    made_trees.write(made, made_trees.forest())
    answer = client_of(made).get("/tree", params={"tree": name})
    assert answer.status_code == 404 and "<h1>" in answer.text


@pytest.mark.parametrize("broken", ["{", '{"format": 1, "nodes": [{}]}'])
def test_broken_trees_are_a_sentence(client_of, made, broken):
    folder = made_trees.write(made, made_trees.forest())
    made_trees.write(made, made_trees.forest(iteration=21))
    (folder / "tree.json").write_text(broken, encoding="utf-8")
    client = client_of(made)
    answer = client.get("/tree?tree=000020-3")
    assert answer.status_code == 503 and "cannot be read" in answer.text
    listed = client.get("/trees")
    assert listed.status_code == 200 and "cannot be read" in listed.text and "tree=000021-3" in listed.text


def test_a_missing_picture_is_a_picture_that_says_so(client_of, made):
    folder = made_trees.write(made, made_trees.forest())
    (folder / "node-2.webp").unlink()
    client = client_of(made)
    assert client.get("/tree?tree=000020-3").status_code == 200
    missing = client.get("/media/made/trees/000020-3/node-2.webp?size=128")
    assert missing.status_code == 404 and missing.headers["content-type"].startswith("image/svg")
    assert client.get("/media/made/trees/000020-3/tree.json").status_code == 404


def test_nodes_without_pictures_and_videos(client_of, made):
    tree = made_trees.forest()
    made_trees.write(made, tree, frames=4)
    client = client_of(made)
    text = client.get("/tree?tree=000020-3").text
    still = client.get("/media/made/trees/000020-3/node-2.webp?size=128&still=1").content
    moving = client.get("/media/made/trees/000020-3/node-2.webp").content
    assert "node-2.webp?size=128&amp;still=1" in text
    assert b"ANMF" in moving and b"ANMF" not in still


def test_neighbours_keep_the_group_where_they_can():
    found = [(0, 0), (0, 3), (20, 0), (20, 3), (40, 0)]
    assert neighbours(found, (20, 3)) == {"previous": (20, 0), "next": (40, 0), "earlier": (0, 3), "later": (40, 0)}
    assert neighbours(found, (0, 0)) == {"previous": None, "next": (0, 3), "earlier": None, "later": (20, 0)}
    assert neighbours(found, (40, 0)) == {"previous": (20, 3), "next": None, "earlier": (20, 0), "later": None}


def test_the_reports_figure_stands_alone(client_of, made):
    made_trees.write(made, made_trees.forest(prompt=HOSTILE))
    text = client_of(made).get("/report").text
    figure = text[text.index('class="treefig') : text.index("<details", text.index('class="treefig'))]
    elements = Elements(figure)
    assert sum("node" in (found.get("class") or "").split() for _, found in elements.found) == 28
    names = re.findall(r'<span class="name">([^<]+)</span>', figure)  # as the story beside it calls them
    assert len(names) == 28 and {"1", "2a", "2ab", "4bb"} <= set(names)
    assert "<script" not in figure and " id=" not in figure and "href" not in figure and 'loading="lazy"' not in figure
    assert "near 0" in figure and "≥ +1" in figure and "turning point" in figure
    assert ">step trains" in figure and ">does not train<" in figure
    assert all(found["src"].startswith("data:image/webp") for tag, found in elements.found if tag == "img")


def test_the_figures_style_touches_nothing_else():
    css = (STATIC / "tree_figure.css").read_text(encoding="utf-8")
    rules = re.sub(r"/\*.*?\*/", "", css, flags=re.S)
    rules = re.sub(r"@media[^{]*\{((?:[^{}]*\{[^{}]*\})*)\s*\}", r"\1", rules)
    selectors = [one.strip() for head in re.findall(r"([^{}]+)\{[^{}]*\}", rules) for one in head.split(",")]
    assert len(selectors) > 40 and all(selector.startswith(".treefig") for selector in selectors)
    assert "url(" not in css and "@import" not in css
