"""Which column of a table holds the prompts."""

import pytest

from reward_models.common.columns import prompt_text, text_column


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([{"Prompt": "a red circle", "text": "b"}], "Prompt"),
        ([{"text": 3, "caption": "a red circle"}], "caption"),
        ([{"text": "3", "Caption": "a red circle"}, {"text": "4", "Caption": "a cat"}], "Caption"),
        ([{"text": "1984", "id": 1}, {"text": "42", "id": 2}], "text"),
        ([{"caption": ["a red circle", "a circle"]}], "caption"),
        ([{"Text Prompt": "a cat", "label": "cat"}], "Text Prompt"),
        ([{"label": "cat"}], None),
    ],
)
def test_the_column_of_words_is_the_prompt(rows, expected):
    assert text_column(list(rows[0]), rows) == expected


def test_a_cell_is_a_text_or_the_first_of_a_list():
    assert prompt_text(" a cat\n") == "a cat" and prompt_text(["", "a cat", "cats"]) == "a cat"
    assert [prompt_text(value) for value in (None, 7, "", [], [3], float("nan"))] == [None] * 6
