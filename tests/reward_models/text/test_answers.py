"""Scores in what a judge wrote: what is read, and what is refused rather than guessed."""

import math

import pytest

from reward_models.text.answers import AnswerError, json_number, labelled_number, yes_probability


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ('{"score": 7}', 7),
        ('{"score": "6.5"}', 6.5),
        ('Like {"score": 1}? No.\n```json\n{"reason": "{braces}", "score": 8.25}\n```', 8.25),
        ('{"score": 3, "parts": {"score": 9}}', 3),
        ('{ broken {"score": 0}', 0),
    ],
)
def test_json_answers(text, score):
    assert json_number(text, "score") == score


@pytest.mark.parametrize(
    "text",
    [
        "7",
        '{"points": 7}',
        '{"score": null}',
        '{"score": true}',
        '{"score": "8/10"}',
        "{" * 5000,
    ],
)
def test_json_answers_without_a_score(text):
    with pytest.raises(AnswerError):
        json_number(text, "score")


@pytest.mark.parametrize(
    ("text", "score"),
    [
        ("**Final Score:** 4", 4),
        ("**Final Score**: 4.5", 4.5),
        ("final score: **3**/5", 3),
        ("Final Score (1-5): 2.694700002670288", 2.694700002670288),
        ("Final Score (from 1 to 5): 2.", 2),
        ("Final Score: 1\nbut on reflection\nFinal Score: 5", 5),
        ("after 'Final Score:'. Final Score = 3", 3),
        ("Final Score: -2", -2),
        ("__Final Score__:\n\n5", 5),
        ("Final Score: 4, as its 3 colours are right", 4),
        ("Final Score: 4,", 4),
        ("Final Score: 3\nFinal Score: 1-5", 3),  # the form that was asked for, said again
    ],
)
def test_labelled_numbers(text, score):
    assert labelled_number(text, "Final Score") == score


@pytest.mark.parametrize(
    "text",
    [
        "",
        "4",
        "Final Score (1-5): X",
        "Final Score: 1-5",
        "Final Score: 1.2.3",
        "Final Score: four",
        "Final Score: 4,5",
        "Final Score: 12.5e+3",
        "Final Score: 3\nFinal Score: 4,5",  # the last is meant, and cannot be read
        "SemiFinal Score: 4",
        "Final Scores: 4",
    ],
)
def test_labels_without_a_number(text):
    with pytest.raises(AnswerError):
        labelled_number(text, "Final Score")


@pytest.mark.parametrize(
    "share",
    [
        " / {}",
        "/**{}**",
        " of {}",
        " points out of {}",
        " (out of {})",
    ],
)
def test_a_score_out_of_another_number_is_on_another_scale(share):
    text = "Score: 4" + share
    for shown, highest in (("5", 5.0), ("10", 10.0), ("5.0", 5.0), ("2.5", 2.5)):
        assert labelled_number(text.format(shown), "Score", highest) == 4
    for shown, highest in (("10", 5.0), ("5", 10.0), ("50", 5.0), ("5.5", 5.0), ("100", 1.0)):
        with pytest.raises(AnswerError, match=f"4 out of {shown}, and the highest score is {highest:g}"):
            labelled_number(text.format(shown), "Score", highest)
    assert labelled_number(text.format(10), "Score") == 4


def test_a_percentage_is_out_of_a_hundred():
    assert labelled_number("Score: 4%", "Score", 100) == 4
    with pytest.raises(AnswerError, match="4 out of 100, and the highest score is 10"):
        labelled_number("Score: 4 %", "Score", 10)


def test_what_follows_on_another_line_is_not_of_the_score():
    assert labelled_number("Score: 4\nof 7 things", "Score", 5) == 4
    assert labelled_number("Score: 4 of course", "Score", 5) == 4


def test_yes_probability_by_hand():
    log = math.log
    options = [("Yes", log(0.3)), (" yes", log(0.1)), ("ĠNo", log(0.2)), ("NO.", log(0.2)), ("Yesterday", log(0.1))]
    assert yes_probability(options) == pytest.approx(0.4 / 0.8)
    assert yes_probability([("Yes", log(0.97))]) == 1.0
    assert yes_probability([("nein", log(0.3)), ("Ja", log(0.6))], ("Ja", "Nein")) == pytest.approx(2 / 3)
    for listed in ([], [("The", log(0.9)), ("Yes", log(0.05))]):
        with pytest.raises(AnswerError, match="neither 'Yes' nor 'No'"):
            yes_probability(listed)
