"""Cases worked by hand from the published rules, and a second writing of them over random detections."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reward_models import RewardError
from reward_models.images.geneval_rules import (
    COLORS,
    RELATIONS,
    Detection,
    class_name,
    judge,
    kept,
    read_conditions,
    relations,
)


def box(name, x, y, width=10, height=10, score=0.8):
    """An object by its centre."""
    return Detection(name, score, (x - width / 2, y - height / 2, x + width / 2, y + height / 2))


def no_colors(objects, name):
    raise AssertionError("no colour was asked for")


def evaluate(metadata, detections, colors_of=no_colors, threshold=None):
    conditions = read_conditions(metadata)
    chosen = kept(detections, threshold or (0.9 if conditions.counting else 0.3), 16)
    return judge(conditions, chosen, colors_of)


SINGLE = {"tag": "single_object", "include": [{"class": "clock", "count": 1}]}


def test_presence_and_threshold():
    assert evaluate(SINGLE, [box("clock", 9, 9, score=0.31)]) == {"strict": 1, "partial": 1, "count": 1}
    assert evaluate(SINGLE, [box("clock", 9, 9, score=0.3)])["strict"] == 0  # above, not at
    assert evaluate(SINGLE, [box("dog", 9, 9)]) == {"strict": 0, "partial": 0, "count": 0}
    assert evaluate(SINGLE, [box("clock", 9, 9)] * 5)["strict"] == 1  # at least as many


def test_at_most_so_many_objects_a_class_surest_first():
    objects = [box("clock", i, 0, score=0.31 + 0.02 * i) for i in range(20)]
    chosen = kept([*objects, box("dog", 0, 0)], 0.3, 16)
    assert [item.score for item in chosen["clock"]] == sorted((item.score for item in objects), reverse=True)[:16]
    assert len(chosen["dog"]) == 1 and "cat" not in chosen


@pytest.mark.parametrize(
    ("x", "y", "expected"),
    [
        (40, 40, {"right of", "below"}),  # (40 - 2) / 56.57 = 0.67
        (2, 0, set()),  # 0.1 * (10 + 10) = 2 is taken off
        (3, 0, set()),  # (3 - 2) / 3 = 0.33
        (4.5, 0, {"right of"}),  # 2.5 / 4.5 = 0.56
        (4, 0, set()),  # exactly 0.5
        (40, 20, {"right of"}),  # (20 - 2) / 44.7 = 0.40
        (0, 0, set()),
    ],
)
def test_relations(x, y, expected):
    assert relations(box("dog", 100 + x, 100 + y), box("tie", 100, 100), 0.1) == expected


def test_names_of_geneval_and_of_old_lists():
    assert class_name("TV remote") == class_name("remote") == "remote"
    assert class_name(" tvmonitor ") == class_name("tv") == "tv"
    metadata = {"include": [{"class": "computer mouse", "count": 1}]}
    assert evaluate(metadata, [box("mouse", 1, 1)])["strict"] == 1


@pytest.mark.parametrize(
    ("metadata", "sentence"),
    [
        ({"include": []}, "at least one entry"),
        ({"include": {"class": "dog", "count": 1}}, "has a list at include"),
        ({"include": ["dog"]}, "names a class"),
        ({"include": [{"class": "dog"}]}, "whole count >= 1"),
        ({"include": [{"class": "dog", "count": True}]}, "whole count >= 1"),
        ({"include": [{"class": "dog", "count": 1, "color": "teal"}]}, "has colours of red"),
        ({"include": [{"class": "dog", "count": 1, "position": ["near", 0]}]}, "has positions"),
        ({"include": [{"class": "dog", "count": 1, "position": ["above", 0]}]}, "refer to an earlier entry"),
        ({"include": [{"class": "dog", "count": 1}], "exclude": "dog"}, "has a list at exclude"),
    ],
)
def test_metadata_out_of_format(metadata, sentence):
    with pytest.raises(RewardError, match=sentence):
        read_conditions(metadata)


def second_writing(metadata, detections, colors_of):
    """(correct, conditions that hold), in the order in which GenEval's program goes, with arrays."""
    limit = 0.9 if metadata.get("tag") == "counting" else 0.3
    names = {item.name for item in detections}
    found = {
        name: sorted((d for d in detections if d.name == name and d.score > limit), key=lambda d: d.score)[::-1][:16]
        for name in names
    }
    holds, matched = [], []
    for entry in metadata["include"]:
        items = found.get(entry["class"], [])[: entry["count"]]
        good = len(items) >= entry["count"]
        holds.append(good)
        if "color" in entry:
            good = good and colors_of(items, entry["class"]).count(entry["color"]) >= entry["count"]
            holds.append(good)
        if "position" in entry:
            wanted, other = entry["position"]
            if good and matched[other] is not None:
                for a in items:
                    for b in matched[other]:
                        good = good and wanted in arrays_say(a, b)
            else:
                good = False
            holds.append(good)
        matched.append(items if good else None)
    holds += [len(found.get(entry["class"], [])) < entry["count"] for entry in metadata.get("exclude", [])]
    return all(holds), holds


def arrays_say(a, b):
    corners = np.array([a.box, b.box]).reshape(2, 2, 2)
    offset = corners.mean(1)[0] - corners.mean(1)[1]
    sizes = (corners[:, 1] - corners[:, 0]).sum(0)
    short = np.sign(offset) * np.clip(np.abs(offset) - 0.1 * sizes, 0, None)
    if np.abs(short).max() < 1e-3:
        return set()
    x, y = short / np.sqrt((offset**2).sum())
    return {name for name, true in zip(RELATIONS, (x < -0.5, x > 0.5, y < -0.5, y > 0.5), strict=True) if true}


names = st.sampled_from(["dog", "tie", "cup"])
places = st.integers(0, 12)
entries = st.fixed_dictionaries({"class": names, "count": st.integers(1, 3)})
colored = st.one_of(st.just({}), st.fixed_dictionaries({"color": st.sampled_from(COLORS[:2])}))


@st.composite
def prompts(draw):
    include = []
    for index in range(draw(st.integers(1, 3))):
        entry = {**draw(entries), **draw(colored)}
        if index and draw(st.booleans()):
            entry["position"] = [draw(st.sampled_from(RELATIONS)), draw(st.integers(0, index - 1))]
        include.append(entry)
    return {
        "tag": draw(st.sampled_from(["counting", "position"])),
        "include": include,
        "exclude": draw(st.lists(entries, max_size=2)),
    }


@st.composite
def scenes(draw):
    """Distinct confidences: ties have no published order."""
    scores = draw(st.lists(st.integers(20, 99), max_size=9, unique=True))
    return [
        box(draw(names), draw(places), draw(places), draw(st.integers(1, 6)), draw(st.integers(1, 6)), score / 100)
        for score in scores
    ]


@settings(max_examples=200, deadline=None)
@given(prompts(), scenes())
def test_judgement_against_the_second_writing(metadata, detections):
    def colors_of(items, name):
        return [COLORS[round(100 * item.score) % 2] for item in items]

    correct, holds = second_writing(metadata, detections, colors_of)
    result = evaluate(metadata, detections, colors_of)
    assert result["strict"] == correct
    assert result["partial"] == sum(holds) / len(holds)
    assert (result["partial"] == 1) == correct
