"""The batches that scorers of the user's own get; what they return and raise is tested in test_asking.py."""

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


def test_too_little_memory_is_one_sentence(refused, pictures, counting, tmp_path):
    name = counting("greedy", before="raise RuntimeError('CUDA out of memory. Tried to allocate 7 GiB.')")
    message = refused(pictures, "--reward", name, "--option", f"log={tmp_path / 'log'}", "--batch-size", 2)
    assert "1 sample at once" in message and "--batch-size" in message
