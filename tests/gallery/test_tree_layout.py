"""Where the nodes of a tree stand: nothing overlaps, whatever the tree."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from diffrl.gallery.trees.layout import MARGIN, lay_out
from diffrl.trees.record import TreeLeaf, TreeNode
from tests.gallery import made_trees


@st.composite
def trees(draw):
    """Forests with 1 to 4 children at each step, of which parts were only explored; leaves of all kinds."""
    branching = draw(st.lists(st.integers(1, 4), max_size=4))
    explored = draw(st.booleans())
    nodes: list[TreeNode] = []

    def grow(parent: int | None, drawn: bool, depth: int, root: int, child: int) -> None:
        last = depth == len(branching)
        proxy = 0.5 if explored else None
        sample = TreeLeaf(proxy=proxy, proxy_picture="p.webp" if explored else None, total=0.5 if drawn else None)
        place = len(nodes)
        step = depth - 1 if depth else None
        nodes.append(
            TreeNode(place, parent, root, child, step, 1 - depth / 9, drawn, 0.5, leaf=sample if last else None)
        )
        if not last:
            for number in range(branching[depth]):
                grow(place, drawn and (not explored or draw(st.booleans())), depth + 1, root, number)

    for root in range(draw(st.integers(1, 5))):
        grow(None, not explored or draw(st.booleans()), 0, root, 0)
    return made_trees.record(nodes, branching=dict(enumerate(branching)), explored={} if explored else None)


def overlap(one, other) -> bool:
    """Whether two boxes share more than an edge."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def check(record, drawn_only):
    """No two boxes overlap, all lie on the canvas, every shown node has one place."""
    layout = lay_out(record, drawn_only)
    shown = [node.id for node in record.nodes if node.drawn or not drawn_only]
    assert [place.node for place in layout.places] == shown
    for one, other in itertools.combinations(layout.places, 2):
        assert not overlap(one.box, other.box), (one, other)
    for place in layout.places:
        left, top, right, bottom = place.box
        assert left >= 0 and top >= 0 and right <= layout.width and bottom <= layout.height
    places = {place.node: place for place in layout.places}
    for node in record.nodes:
        below = [places[child.id] for child in record.nodes if child.parent == node.id and child.id in places]
        if node.id in places and below:
            assert below[0].y - 1e-6 <= places[node.id].y <= below[-1].y + 1e-6 or len(below) == 1
            assert all(child.x > places[node.id].x + places[node.id].size for child in below)
    edges = {edge.node for edge in layout.edges}
    assert edges == {number for number in shown if record.nodes[number].parent is not None}


@settings(max_examples=60, deadline=None)
@given(trees(), st.booleans())
def test_nothing_overlaps(record, drawn_only):
    check(record, drawn_only)


@pytest.mark.parametrize(
    "record",
    [made_trees.forest(), made_trees.pool(), made_trees.pool(128, 32), made_trees.wide_forest(32), made_trees.chains()],
    ids=["forest", "pool 64", "pool 128", "explored forest of 128", "chains"],
)
@pytest.mark.parametrize("drawn_only", [False, True])
def test_the_trees_that_runs_write(record, drawn_only):
    check(record, drawn_only)


def test_parents_stand_in_the_middle_of_equal_children():
    places = lay_out(made_trees.forest()).places
    for top, first, last in ((0, 1, 4), (1, 2, 3), (21, 22, 25)):
        assert places[top].y == pytest.approx((places[first].y + places[last].y) / 2)


def test_inner_pictures_take_the_room_that_they_have():
    sizes = {place.node: place.size for place in lay_out(made_trees.forest()).places}
    assert (sizes[0], sizes[1], sizes[2]) == (144, 2 * (64 + 8) - 2 * 18 - 8, 64)  # leaves keep their rows
    assert {place.size for place in lay_out(made_trees.chains()).places} == {64}
    assert lay_out(made_trees.forest()).height == 16 * (64 + 8) - 8 / 2 + 62 + 14 + 14  # none of it makes it taller


def test_the_tail_is_the_last_column():
    for record in (made_trees.forest(), made_trees.chains(), made_trees.wide_forest()):
        layout = lay_out(record)
        assert layout.width - layout.tail == pytest.approx(max(place.x for place in layout.places))


def test_columns_go_from_noise_to_picture():
    layout = lay_out(made_trees.forest())
    assert len({round(place.x, 3) for place in layout.places}) == 3
    assert layout.places[0].x == MARGIN
    assert [caption.title for caption in layout.captions] == [
        "noise level 1.00",
        "noise level 0.75",
        "finished images",
    ]
    # The levels at which the story says that paths split.
    assert [caption.note for caption in layout.captions[1:]] == [
        "split at 1.00, step 1 of 4",
        "split at 0.50, step 3 of 4",
    ]
    assert lay_out(made_trees.chains()).captions[1].note.startswith("noise at 1.00, step 1 of ")


def test_leaves_are_stacked_in_the_order_of_the_branches():
    record = made_trees.forest()
    heights = [place.y for place in lay_out(record).places if record.nodes[place.node].leaf]
    assert heights == sorted(heights)


def test_an_edge_joins_the_pictures_of_its_nodes():
    layout = lay_out(made_trees.forest())
    top, middle = layout.places[0], layout.places[1]
    edge = next(edge for edge in layout.edges if edge.node == 1)
    start = float(re.match(r"M([\d.]+) ", edge.path)[1])
    assert top.x < start and (start - top.x) * 2.4 < top.size  # covered by the picture, drawn 2.4 times as wide too
    assert edge.path.startswith(f"M{start:.1f} {top.y:.1f}C")
    assert edge.path.endswith(f" {middle.x:.1f} {middle.y:.1f}")


def test_a_pool_shows_what_was_drawn_first_and_the_best_of_it_first():
    record = made_trees.pool()
    layout = lay_out(record)
    reading = sorted(layout.places, key=lambda place: (place.y, place.x))
    drawn = [record.nodes[place.node].drawn for place in reading]
    assert drawn == sorted(drawn, reverse=True)
    rewards = [record.nodes[place.node].leaf.total for place in reading if record.nodes[place.node].drawn]
    assert rewards == sorted(rewards, reverse=True)
    proxies = [record.nodes[place.node].leaf.proxy for place in reading if not record.nodes[place.node].drawn]
    assert proxies == sorted(proxies, reverse=True)
    assert [caption.title for caption in layout.captions] == ["generated again", "only explored"]


def test_leaving_out_the_explored_makes_it_smaller():
    record = made_trees.wide_forest()
    assert lay_out(record, drawn_only=True).height < 0.6 * lay_out(record).height


def test_nothing_drawn_is_an_empty_layout():
    record = made_trees.record([TreeNode(0, None, 0, 0, None, 1.0, drawn=False, leaf=TreeLeaf(proxy=0.1))])
    assert lay_out(record, drawn_only=True).places == []
