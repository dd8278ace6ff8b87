"""What rewards' weights take, added up by hand: float32 unless said otherwise, what is shared once."""

import pytest

from diffrl.cost.plan import make_plan, plan_text
from diffrl.cost.scorers import scorer_weights
from tests.cost.test_plan import config_of

MIB = 2**20
CLIP, DETECTOR, PICK, HPS = 427_616_513, 68_741_083, 986_109_441, 986_109_441


def weights(rewards, held_out=({"name": "shapes"},)):
    return scorer_weights(config_of(rewards=list(rewards), eval={"rewards": list(held_out)}))


def test_weights_are_added_up_by_device_and_precision():
    found = weights(
        [{"name": "pickscore", "dtype": "bfloat16"}, {"name": "hpsv2", "device": "cpu"}],
        [{"name": "clip_score", "device": "cuda:1", "options": {"dtype": "float16"}}, {"name": "sharpness"}],
    )
    there = {"cpu": 4 * HPS + 32 * 16 * MIB, "cuda:1": 2 * CLIP + 32 * 17 * MIB // 2}
    assert (found.beside, found.other_devices, found.notes) == (2 * PICK, there, ())


def test_calls_take_turns_on_a_device_and_go_by_batch_and_precision():
    found = weights(
        [{"name": "pickscore", "dtype": "bfloat16"}, {"name": "geneval", "batch_size": 2}],
        [{"name": "clip_score"}, {"name": "shapes"}],
    )
    assert found.working == max(32 * 21 // 2, 2 * 682, 32 * 17) * MIB
    assert weights([{"name": "geneval", "device": "cpu"}, {"name": "sharpness"}]).working == 0
    unknown = {"name": "clip_score", "options": {"model": "somewhere/else"}}
    assert weights([unknown]).working == 0


def test_twins_hold_their_weights_once_where_precision_and_device_are_the_same():
    found = weights([{"name": "geneval"}, {"name": "clip_score"}], [{"name": "geneval_strict"}, {"name": "pickscore"}])
    assert (found.beside, found.notes) == (4 * (CLIP + DETECTOR + PICK), ())
    apart = weights(
        [{"name": "geneval"}, {"name": "geneval_strict", "dtype": "bfloat16"}],
        [{"name": "clip_score", "device": "cpu"}],
    )
    assert (apart.beside, apart.other_devices) == ((4 + 2) * (CLIP + DETECTOR), {"cpu": 4 * CLIP + 32 * 17 * MIB})


def test_another_file_of_the_same_repository_is_another_copy():
    found = weights([{"name": "hpsv2"}], [{"name": "hpsv2"}, {"name": "pickscore"}])
    assert (found.beside, found.notes) == (4 * (HPS + PICK), ())
    older = {"name": "hpsv2", "options": {"version": "2.0"}}
    assert weights([{"name": "hpsv2"}], [older]).beside == 4 * 2 * HPS


def test_a_reward_of_a_clips_frames_counts_as_what_it_averages():
    options = {"reward": "pickscore", "reward_options": {"dtype": "bfloat16"}}
    assert weights([{"name": "video_mean", "options": options}]).beside == 2 * PICK


def test_the_predictor_that_aesthetic_is_always_given_makes_its_tower_no_stranger():
    assert weights([{"name": "aesthetic", "options": {"checkpoint": "head.pth"}}]).beside == 4 * 303_966_208


@pytest.mark.parametrize(
    "reward",
    [
        {"name": "clip_score", "options": {"model": "somewhere/else"}},
        {"name": "tests.rewards.own:Own"},
        {"name": "diversity", "options": {"features": "clip"}},
        {"name": "video_mean", "options": {"reward": "tests.rewards.own:Own"}},
    ],
)
def test_what_is_not_known_is_named(reward):
    found = weights([reward, {"name": "image_reward"}])
    assert found.beside == 4 * 446_206_689
    assert found.notes == (
        f"Memory without the weights of these rewards, whose size is not known: rewards {reward['name']}.",
    )


def test_the_plan_holds_them(tmp_path, made_up_sizes):
    from tests.cost.test_plan import write_pipeline

    write_pipeline(tmp_path)
    base, more = (
        make_plan(config_of(tmp_path, rewards=rewards))
        for rewards in ([{"name": "shapes"}], [{"name": "pickscore"}, {"name": "hpsv2", "device": "cpu"}])
    )
    assert more.memory.kept["scorers"] - base.memory.kept["scorers"] == 4 * PICK
    assert more.memory.passing["decode"] - base.memory.passing["decode"] == 32 * 21 * MIB
    assert more.memory.passing["rollout"] == base.memory.passing["rollout"]
    assert more.memory.scorers == {"cpu": 4 * HPS + 32 * 16 * MIB}
    apart = make_plan(config_of(tmp_path, rewards=[{"name": "pickscore"}], rollout={"prompts_at_once": 1}))
    assert apart.memory.passing["rollout"] - base.memory.passing["rollout"] == 32 * 21 * MIB
    text = plan_text(more).splitlines()
    assert any(line.split() == ["scorers", "3.7", "GiB"] for line in text)
    assert any(line.split() == ["scorers", "on", "cpu", "4.2", "GiB"] for line in text)
