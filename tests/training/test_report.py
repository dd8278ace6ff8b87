"""The summary's numbers and the pictures."""

import torch
from PIL import Image

from diffrl.tracking.metrics import MetricsLog
from diffrl.tracking.store import SampleStore, StoredSample
from diffrl.training.report import held_out_change, write_before_after, write_curve


def test_the_change_is_from_the_first_to_the_last_evaluation():
    rows = [
        {"iteration": 0, "held_out/shapes_strict": 0.25, "held_out/shapes_strict/partial": 0.5, "held_out/mine": 3.0},
        {"iteration": 1},
        {"iteration": 2, "held_out/shapes_strict": 0.375, "held_out/shapes_strict/partial": 0.625},
        {"iteration": 3, "held_out/shapes_strict": 0.75, "held_out/shapes_strict/partial": 0.875, "held_out/mine": 1.0},
    ]
    assert held_out_change(rows, ["shapes_strict", "mine"]) == {
        "strict_before": 0.25,
        "strict_after": 0.75,
        "mine_before": 3.0,
        "mine_after": 1.0,
        "partial_before": 0.5,
        "partial_after": 0.875,
    }
    assert held_out_change([], ["mine"]) == {"mine_before": None, "mine_after": None}


def sample(iteration, group, passed, shade):
    picture = torch.zeros(3, 8, 8, dtype=torch.uint8)
    picture[0] = shade
    address = {"stage": "eval", "iteration": iteration, "group": group, "root": 0, "seed": 1}
    return StoredSample(**address, prompt=f"prompt {group}", rewards={"r": float(passed)}, picture=picture)


def test_before_and_after_are_paired_by_prompt_and_noise(tmp_path):
    with SampleStore(tmp_path) as store:
        store.write([sample(0, 5, False, 10), sample(0, 6, True, 60)])
        store.write([sample(9, 6, True, 160), sample(9, 5, True, 110), sample(4, 5, True, 250)])
    assert write_before_after(tmp_path, "r", 9, tmp_path / "grid.png")
    colors = {color for _, color in Image.open(tmp_path / "grid.png").convert("RGB").getcolors(100_000)}
    assert {(shade, 0, 0) for shade in (10, 60, 110, 160)} <= colors and (250, 0, 0) not in colors


def test_without_both_evaluations_there_is_no_grid(tmp_path):
    with SampleStore(tmp_path) as store:
        store.write([sample(0, 5, False, 10)])
    assert not write_before_after(tmp_path, "r", 9, tmp_path / "grid.png")
    assert not (tmp_path / "grid.png").exists()


def test_the_curve_is_a_picture_even_of_a_run_with_gaps(tmp_path):
    with MetricsLog(tmp_path / "metrics.jsonl") as log:
        log.append({"iteration": 0, "held_out/r": 0.1})
        log.append({"iteration": 1, "reward/mean": float("nan")})
        log.append({"iteration": 2, "reward/mean": 0.5, "held_out/r": 0.7})
    write_curve(tmp_path, ["r"], tmp_path / "curve.png")
    assert Image.open(tmp_path / "curve.png").size[0] > 500
