"""Scorers of the user's own in use: the batches they get, and what becomes of what they return and raise."""

from __future__ import annotations

import json

import pytest

from reward_models.media import to_pil
from reward_models.self_test import noise


@pytest.mark.parametrize(("own", "given", "expected"), [(3, [], 3), (40, ["--batch-size", 2], 2)])
def test_a_batch_is_as_large_as_the_scorer_says(score, counting, tmp_path, own, given, expected):
    for number in range(12):
        to_pil(noise(8, seed=number)).save(tmp_path / f"{number}.png")
    name = counting(f"mine_sized_{own}")
    with (tmp_path / f"mine_sized_{own}.py").open("a") as stream:
        stream.write(f"import dataclasses\nCounting.spec = dataclasses.replace(Counting.spec, batch_size={own})\n")
    option = ["--option", f"log={tmp_path / 'log'}", "--prompt", "p", "--no-cache"]
    assert score(tmp_path, "--reward", name, *option, *given).code == 0
    sizes = [int(line.split()[0]) for line in (tmp_path / "log.txt").read_text().splitlines()]
    assert max(sizes) == expected and len(sizes) == 12
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps([{"name": name, "options": {"log": str(tmp_path / "other")}, "batch_size": 5}]))
    assert score(tmp_path, "--config", recipe, "--prompt", "p", "--no-cache").code == 0
    assert max(int(line.split()[0]) for line in (tmp_path / "other.txt").read_text().splitlines()) == 5


@pytest.mark.parametrize(
    ("result", "sentence"),
    [("batch.media.float()", "Got Tensor"), ("output_of_rows([(0.5, {}, None)] * 7)", "7")],
)
def test_an_output_of_another_length_gives_no_picture_another_ones_score(
    refused, pictures, tmp_path, monkeypatch, result, sentence
):
    module = f"many_{len(result)}"
    (tmp_path / f"{module}.py").write_text(
        "from reward_models.base import ScorerSpec, output_of_rows\n"
        "class Many:\n"
        "    spec = ScorerSpec('many', 'Too many.', (0.0, 1.0), uses_prompt=False)\n"
        f"    def __call__(self, batch):\n        return {result}\n"
        "    def to(self, device):\n        return self\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    message = refused(pictures, "--reward", f"{module}:Many")
    assert f"{module}:Many must return a RewardOutput with one entry a sample" in message and sentence in message


@pytest.mark.parametrize(
    ("raised", "expected"),
    [
        ("KeyError('tone')", "failed on 'a red circle'"),
        ("MemoryError()", "The memory did not suffice"),
    ],
)
def test_what_a_scorer_raises_is_one_sentence(refused, pictures, counting, tmp_path, raised, expected):
    name = counting(f"raising_{raised[:5].lower()}", before=f"raise {raised}")
    message = refused(pictures, "--reward", name, "--option", f"log={tmp_path / 'log'}")
    assert expected in message and name in message


def test_too_little_memory_is_one_sentence(refused, pictures, counting, tmp_path):
    name = counting("greedy", before="raise RuntimeError('CUDA out of memory. Tried to allocate 7 GiB.')")
    message = refused(pictures, "--reward", name, "--option", f"log={tmp_path / 'log'}", "--batch-size", 2)
    assert "1 sample at once" in message and "--batch-size" in message
