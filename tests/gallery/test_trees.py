"""The pages of trees, without a browser."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from diffrl.gallery.links import ServerLinks
from diffrl.gallery.pages.trees import neighbours
from diffrl.gallery.query import Query
from diffrl.gallery.site import Site
from diffrl.gallery.sources import find_sources
from diffrl.gallery.trees.figure import TREE_FIGURE_CSS, strength, tree_figure
from diffrl.gallery.trees.view import tree_view
from diffrl.trees.read import read_tree
from diffrl.trees.record import TreeLeaf
from tests.gallery import made_trees

HOSTILE = '<script>alert("x")</script>\' & \u202egnirts ' + "long " * 2000


class Elements(HTMLParser):
    """Start tags with their attributes; fails on what was never closed."""

    def __init__(self, text: str):
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def of(self, css: str) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.found if css in (attributes.get("class") or "").split()]


def items(text: str) -> dict[int, dict[str, str | None]]:
    """The tree's items by the id of their node."""
    return {
        int(found["data-node"] or ""): found for _, found in Elements(text).found if found.get("role") == "treeitem"
    }


def test_written_trees_are_read_as_they_were(tmp_path):
    tree = made_trees.forest()
    made_trees.write(tmp_path, tree)
    assert read_tree(tmp_path, 20, 3) == tree


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
        "Node 2a, noise level 0.75, value 1.000, step +0.375, advantage of the step +1.12, step trains, turning point, "
        "change of log-likelihood +0.00047 per dimension"
    )
    assert found[3]["title"].startswith("Image 1ab, reward 0.250, not passed, advantage of the")
    assert "reward failed" in found[27]["title"] and "step does not train" in found[27]["title"]
    assert (found[8]["aria-level"], found[8]["aria-posinset"], found[8]["aria-setsize"]) == ("2", "1", "2")
    assert "failed" in (found[27]["class"] or "")
    assert [number for number, one in found.items() if one["tabindex"] == "0"] == [0]
    assert "Steps pushed up most" in answer.text and 'href="#node-8" data-ref="8"' in answer.text


def test_lines_have_the_colour_and_the_width_of_their_advantage(client_of, made):
    made_trees.write(made, made_trees.forest())
    text = client_of(made).get("/tree?tree=000020-3").text
    lines = {int(one["data-node"] or ""): (one["class"] or "").split() for one in Elements(text).of("line")}
    assert lines[8] == ["line", "up3"] and lines[11] == ["line", "down3"]
    assert lines[1] == ["line", "up1"] and lines[2] == ["line", "up2"]
    assert lines[15] == lines[27] == ["line", "flat", "untrained"]  # an advantage of 0, whatever is why, is no push
    chips = dict(
        re.findall(r'<span class="chip-a (\w+)[^"]*"[^>]*>(?:<span class="diamond"[^>]*>◆</span>)?([^<]+)</span>', text)
    )
    assert chips["up3"] == "+1.12" and chips["down3"] == "−1.12" and chips["flat"] == "0"


def test_exact_zeros_and_rounding_zeros_look_alike():
    tree = made_trees.forest()
    drawn = []
    for zero, trained in ((0.0, False), (-3e-8, True)):
        nodes = [replace(node, advantage=zero, trained=trained) if node.id in (15, 16) else node for node in tree.nodes]
        elements = Elements(tree_figure(replace(tree, nodes=nodes), lambda file: ""))
        drawn.append({(one["data-node"], one["class"]) for one in elements.of("line")})
    assert drawn[0] == drawn[1] and ("15", "line flat untrained") in drawn[0]


def test_the_first_pictures_are_those_of_what_was_drawn():
    asked: list[str] = []
    tree_figure(made_trees.wide_forest(4), lambda file: asked.append(file) or "data:,")
    kinds = ["node" if name.startswith("node") else "proxy" for name in asked]
    assert kinds == ["node"] * 5 + ["proxy"] * 16  # 1 noise, 2 branches, 2 pictures; then all candidates
    assert asked[5:7] == ["proxy-2.webp", "proxy-6.webp"]  # of those, first the ones that were drawn again


def test_reasons_name_nodes_as_the_figure_does(client_of, made):
    made_trees.write(made, made_trees.wide_forest(4))
    text = client_of(made).get("/tree?tree=000020-3").text
    assert "split at 1: gap 0.41, better side" in text and "node 0" not in text
    tree = made_trees.wide_forest(4)
    nodes = [replace(n, leaf=replace(n.leaf, chosen="split at node 4: gap 1") if n.leaf else None) for n in tree.nodes]
    assert tree_view(replace(tree, nodes=nodes)).reason(nodes[2]) == "split at 1b: gap 1"
    strange = replace(nodes[2], leaf=replace(nodes[2].leaf, chosen=f"split at node {'9' * 9}"))
    assert tree_view(tree).reason(strange) == f"split at node {'9' * 9}"


def test_words_are_explained_where_they_are_used(client_of, made):
    made_trees.write(made, made_trees.forest())
    made_trees.write(made, made_trees.pool(iteration=21))
    client = client_of(made)

    def words(name):
        block = re.search(r'<details class="words-used">(.*?)</details>', client.get(f"/tree?tree={name}").text, re.S)
        return re.findall(r"<dt>([^<]*)</dt>", block[1])

    contrast, both = "DiffusionNFT&#39;s contrast (nft)", ["group", "passed", "shapes, shapes_strict"]
    steps = ["value", "advantage", "turning point ◆", contrast, "per dimension"]
    assert words("000020-3") == [*both, *steps]
    assert words("000021-3") == ["proxy reward", "NVFP4 (emulated)", "audit", *both, "advantage", contrast]


@pytest.mark.parametrize(
    ("advantage", "expected"),
    [(1.0, "up3"), (0.99, "up2"), (-0.5, "down2"), (0.1, "up1"), (-0.09, "flat"), (0.0, "flat"), (None, "none")],
)
def test_strength(advantage, expected):
    assert strength(advantage) == expected


def test_pools_show_both_pictures_and_why(client_of, made):
    made_trees.write(made, made_trees.pool(6, 4, 1))
    text = client_of(made).get("/tree?tree=000020-3").text
    assert text.count('class="node leaf idle"') == 1 and text.count('class="node leaf"') == 5
    found = items(text)
    assert found[5]["title"] == (
        "Image 6, reward 0.900, not passed, proxy reward 1.000, chosen: best 1, advantage of the image +0.80, trains"
    )
    assert found[2]["title"] == "Candidate, only explored, 3, proxy reward 0.400"
    assert "trees/000020-3/proxy-5.webp" in text and "trees/000020-3/node-5.webp" in text
    data = json.loads(re.search(r'id="tree-nodes">(.*?)</script>', text, re.S)[1])
    assert ["Generated again", "audit"] in data[3]["sample"] and "Audit" in dict(data[3]["sample"])
    assert data[2]["picture"] is None and data[2]["proxy"].endswith("proxy-2.webp")


def test_tables_hold_all_steps_and_all_pictures(client_of, made):
    made_trees.write(made, made_trees.forest())
    text = client_of(made).get("/tree?tree=000020-3").text
    rows = re.findall(r'<tr id="details-(\d+)">.*?<td class="number">([^<]*)</td><td>[^<]*</td><td>(yes|no)</td>', text)
    sizes = [abs(float(share.replace("−", "-"))) for _, share, _ in rows]
    assert len(rows) == 24 and sizes == sorted(sizes, reverse=True) and sizes[0] == 1.12
    pictures = text[text.index("All images, the best first") :]
    assert pictures.count("<tr >") == 16 and "shapes: no object found" in pictures


@pytest.mark.parametrize("page", ["/trees", "/tree?tree=000020-3"])
def test_prompts_stay_text(client_of, made, page):
    tree = made_trees.forest(prompt=HOSTILE, metadata={"<b>": "<i>"}, rule={"reward": "<img src=x>", "edges": True})
    made_trees.write(made, tree)
    answer = client_of(made).get(page)
    assert answer.status_code == 200
    assert "<script>alert" not in answer.text and "<img src=x>" not in answer.text
    assert "&lt;script&gt;alert" in answer.text
    assert 'onerror="' not in answer.text and 'onclick="' not in answer.text


def test_scorers_errors_stay_text(client_of, made):
    tree = made_trees.pool(2, 2, 0)
    tree.nodes[0] = type(tree.nodes[0])(
        0, None, 0, 0, None, 1.0, leaf=TreeLeaf(error="</script><script>alert(1)</script>", rewards={"<u>": 1.0})
    )
    made_trees.write(made, tree)
    text = client_of(made).get("/tree?tree=000020-3").text
    assert "<script>alert" not in text and "<u>" not in text


@pytest.mark.parametrize(
    "name", ["000099-0", "nonsense", "../../made", "20-3", "0000020-3", "000020-03", "000020-3/.."]
)
def test_unknown_trees_are_a_sentence(client_of, made, name):
    made_trees.write(made, made_trees.forest())
    answer = client_of(made).get("/tree", params={"tree": name})
    assert answer.status_code == 404 and "<h1>" in answer.text


@pytest.mark.parametrize("broken", ["", "{", "[]", '{"format": 2}', '{"format": 1, "nodes": [{}]}'])
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


def test_the_figure_stands_alone():
    asked: list[str] = []

    def picture(file: str) -> str:
        asked.append(file)
        return "data:image/webp;base64,AAAA"

    figure = tree_figure(made_trees.forest(prompt=HOSTILE), picture)
    elements = Elements(figure)
    assert asked == [f"node-{number}.webp" for number in range(28)]
    assert len(elements.of("node")) == 28 and len(elements.of("line")) == 24
    named = re.findall(r'<span class="name">([^<]+)</span>', figure)  # as the story beside it calls them
    assert len(named) == 28 and {"1", "2a", "2ab", "4bb"} <= set(named)
    assert "<script" not in figure and " id=" not in figure and "href" not in figure and 'loading="lazy"' not in figure
    assert "near 0" in figure and "≥ +1" in figure and "turning point" in figure
    assert ">step trains" in figure and ">does not train<" in figure
    addresses = {found["src"] for tag, found in elements.found if tag == "img"}
    assert addresses == {"data:image/webp;base64,AAAA"}


def test_the_figures_style_touches_nothing_else():
    rules = re.sub(r"/\*.*?\*/", "", TREE_FIGURE_CSS, flags=re.S)
    rules = re.sub(r"@media[^{]*\{(.*)\}\s*$", r"\1", rules, flags=re.S)
    selectors = [one.strip() for head in re.findall(r"([^{}]+)\{[^{}]*\}", rules) for one in head.split(",")]
    assert len(selectors) > 40 and all(selector.startswith(".treefig") for selector in selectors)
    assert "url(" not in TREE_FIGURE_CSS and "@import" not in TREE_FIGURE_CSS
