"""The world of GenEval: what its prompts ask for is what their metadata says, and no combination is in two splits."""

import re
from collections import Counter
from itertools import combinations

import pytest

from diffrl.data.geneval import CLASSES, KINDS, NUMBERS, PLURALS, SAID
from diffrl.data.prompts import load_prompts
from diffrl.data.worlds import SPLITS
from reward_models.images.geneval_rules import COLORS, RELATIONS, Detection, judge, read_conditions

PROMPTS = {split: load_prompts(f"geneval:{split}") for split in SPLITS}


def combinations_of(metadata):
    """What meets in a prompt, read from its conditions alone."""
    include = metadata["include"]
    names = sorted(clause["class"] for clause in include)
    found = {tuple(names)} if len(include) > 1 else set()
    found |= {(clause["count"], clause["class"]) for clause in include if clause["count"] > 1}
    found |= {("in", clause["color"], clause["class"]) for clause in include if "color" in clause}
    return found or {("alone", *names)}


def test_splits_have_every_kind_and_no_held_out_combination_in_common():
    met = {split: {c for prompt in PROMPTS[split] for c in combinations_of(prompt.metadata)} for split in SPLITS}
    own = {split: met[split] - met["train"] for split in ("tune", "report")}
    assert not own["tune"] & met["report"] and not own["report"] & met["tune"]
    for split in own:  # each prompt has a combination that nothing else is trained or measured on
        assert all(combinations_of(prompt.metadata) & own[split] for prompt in PROMPTS[split])
        assert 500 <= len(PROMPTS[split]) <= 1000
    assert len(PROMPTS["train"]) > 5000
    for split in SPLITS:
        kinds = Counter(prompt.metadata["tag"] for prompt in PROMPTS[split])
        assert set(kinds) == set(KINDS) and min(kinds.values()) >= 10
        assert set(Counter(p.metadata["tag"] for p in PROMPTS[split][:160])) == set(KINDS)


def test_a_sentence_says_what_its_conditions_are():
    """Every class, number, colour and relation stands in it, in the order in which it is read."""
    for prompt in (prompt for split in SPLITS for prompt in PROMPTS[split][::5]):
        include, text = prompt.metadata["include"], prompt.text
        assert not text.startswith("a photo of")
        said = []
        for clause in include:
            number, name = clause["count"], clause["class"]
            thing = " ".join(filter(None, [clause.get("color"), SAID.get(name, name)]))
            said.append(f"{NUMBERS[number]} {PLURALS[name]}" if number > 1 else f"an? {thing}")
        relation, place = include[-1].get("position", (None, 0))
        expected = " and ".join(said) if relation is None else f"{said[1]} {relation} {said[place]}"
        assert re.search(f"(of|with|shows) {expected}$", text), (text, expected)


def test_the_scorers_rules_read_every_prompt_and_its_truth_holds():
    """Objects placed as the conditions ask satisfy all of them; without the first one they do not."""
    place = {"left of": (-99, 0), "right of": (99, 0), "above": (0, -99), "below": (0, 99)}
    assert len(CLASSES) == len(set(CLASSES)) == 80
    for prompt in (prompt for split in SPLITS for prompt in PROMPTS[split][:200]):
        conditions = read_conditions(prompt.metadata)
        assert conditions.counting == (prompt.metadata["tag"] == "counting")
        objects, colors = {}, {}
        for clause in conditions.include:
            x, y = place[clause.position[0]] if clause.position else (0, 0)
            box = (float(x), float(y), x + 9.0, y + 9.0)
            objects[clause.name] = [Detection(clause.name, 1.0, box)] * clause.count
            colors[clause.name] = clause.color or COLORS[0]

        def color_of(found, name, colors=colors):
            return [colors[name]] * len(found)

        assert judge(conditions, objects, color_of)["strict"] == 1
        first = conditions.include[0].name
        assert judge(conditions, objects | {first: objects[first][1:]}, color_of)["strict"] == 0
        more = {name: found * 2 for name, found in objects.items()}
        assert judge(conditions, more, color_of)["strict"] == (0 if conditions.exclude else 1)
    asked = [c for split in SPLITS for p in PROMPTS[split] for c in p.metadata["include"]]
    assert {c["class"] for c in asked} == set(CLASSES)
    assert {c["color"] for c in asked if "color" in c} == set(COLORS)
    assert {c["position"][0] for c in asked if "position" in c} == set(RELATIONS)


@pytest.mark.parametrize(("one", "other"), combinations(SPLITS, 2))
def test_no_word_is_asked_to_be_written_in_two_splits(one, other):
    """The world of written words: its targets are what the scorer reads, and their words belong to one split."""
    written = {}
    for split in (one, other):
        listed = load_prompts(f"ocr:{split}")
        assert len(listed) >= 500
        for prompt in listed:
            assert prompt.text.count('"') == 2 and prompt.text.split('"')[1] == prompt.metadata["text"]
        written[split] = {word.lower() for prompt in listed for word in prompt.metadata["text"].split()}
    assert len(written[one]) > 80 and not written[one] & written[other]
