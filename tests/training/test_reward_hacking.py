"""Reward hacking is noticed when the training reward rises and something unrewarded falls; and only then."""

import math
from dataclasses import asdict

import numpy as np
import pytest
import torch

from diffrl.config.method import RewardHackingGuard, SafetySettings
from diffrl.distributed.ranks import Ranks
from diffrl.errors import GuardStop
from diffrl.records import Prompt, PromptBatch, RewardTable, Rollout, Samples
from diffrl.rewards.score import WeightedScorer
from diffrl.rollout.tree import chains
from diffrl.statistics import Estimate
from diffrl.tracking.health import health_of
from diffrl.training.evaluate import Evaluation
from diffrl.training.reward_hacking import MonitorState, RewardHackingMonitor
from tests.training.harness import rows_of, settings, start
from tests.training.scorers import Brightness

TRAINING = [WeightedScorer("raw", Brightness())]


def monitor(**options):
    said = []
    scorers = [WeightedScorer("good", Brightness()), WeightedScorer("bad", Lower())]
    return RewardHackingMonitor(RewardHackingGuard(**options), scorers, Ranks(), said.append), said


class Lower(Brightness):
    spec = Brightness.spec.__class__("lower", "lower is better", (0.0, 1.0), higher_is_better=False)


def evaluation(good, bad=0.5, deviation=0.1, samples=500):
    means = {"good": good, "bad": bad}
    counts = dict.fromkeys(means, samples)
    estimates = dict.fromkeys(means, Estimate(samples, 0.0, deviation, None, None, None))
    return Evaluation(means, dict.fromkeys(means, deviation), counts, estimates, 0, [], [], torch.empty(0), None)


def noise(seed, count=4, size=32):
    return torch.randint(0, 256, (count, 3, size, size), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


def feed(guard, reward, images=None):
    images = noise(0) if images is None else images
    return feed_groups(guard, images, [0] * len(images), reward)


def judge(guard, *args, samples=500, rewards=TRAINING, **options):
    found = guard.compare(evaluation(*args, samples=samples, **options), samples, rewards)
    if guard.alarm:
        guard.act()
    guard.check()
    return found


def test_diversity_and_sharpness_by_hand():
    guard, _ = monitor()
    images, groups = noise(1, 5), [7, 7, 7, 9, 9]
    found = feed_groups(guard, images, groups)
    small = images.float() / 255
    spread = []
    for i in range(5):
        others = [j for j in range(5) if groups[j] == groups[i] and j != i]
        spread.append(np.mean([float((small[i] - small[j]).square().mean().sqrt()) for j in others]))
    assert found["sentinel/diversity"] == pytest.approx(np.mean(spread), rel=1e-4)
    sharp = []
    for picture in images.double().numpy():
        y = np.tensordot([0.299, 0.587, 0.114], picture, 1)
        inner = [(i, j) for i in range(1, 31) for j in range(1, 31)]
        sharp.append(np.var([y[i - 1, j] + y[i + 1, j] + y[i, j - 1] + y[i, j + 1] - 4 * y[i, j] for i, j in inner]))
    assert found["sentinel/sharpness"] == pytest.approx(np.mean(sharp), rel=1e-4)


def feed_groups(guard, images, groups, reward=0.5):
    """Samples of prompts whose group ids are these, one prompt a sample."""
    forest = chains(torch.arange(len(groups)))
    batch = PromptBatch([Prompt("")] * len(groups), groups, 0)
    rollout = Rollout(batch, forest, torch.empty(0), torch.empty(0), images, None)
    table = RewardTable({"raw": torch.full((len(groups),), reward)}, {}, torch.empty(0), torch.empty(0), [])
    return guard.measure(Samples(rollout, table), {"reward/raw": reward})


def test_a_falling_held_out_reward_is_hacked_while_training_rises_and_else_collapsed():
    """Equally named in metrics and message, with the keys to turn."""
    for rewards, (name, other), words in (
        ((0.2, 0.3, 0.4), ("hacked", "collapsed"), ("looks like reward hacking", "Add what falls to rewards")),
        ((0.5, 0.4, 0.3), ("collapsed", "hacked"), ("looks like a collapse", "Lower train.learning_rate")),
    ):
        guard, said = monitor()
        judge(guard, 0.6)
        feed(guard, rewards[0])
        assert judge(guard, 0.62)["sentinel/alarms"] == 0
        feed(guard, rewards[1])
        assert judge(guard, 0.605)["sentinel/alarms"] == 0  # 0.15 standard deviations
        feed(guard, rewards[2])
        metrics = judge(guard, 0.59)
        assert metrics["sentinel/change/good"] == pytest.approx(-0.3, rel=1e-5)
        assert metrics["sentinel/alarms"] == metrics[f"sentinel/{name}"] == len(said) == 1
        assert metrics[f"sentinel/{other}"] == 0 and all(word in said[0] for word in words)
        assert "held-out good is 0.30 standard deviations worse" in said[0]


@pytest.mark.parametrize(("held_out", "name"), [(0.3, "collapsed"), (0.7, "hacked")])
def test_a_training_reward_is_compared_on_held_out_prompts_where_they_have_it(held_out, name):
    """Training prompts that happen to be easier are no rise, and harder ones no fall."""
    training = [WeightedScorer("good", Brightness())]
    guard, said = monitor()
    judge(guard, 0.5, 0.5, rewards=training)
    guard.state.add({"reward/good": 0.5})
    judge(guard, 0.5, 0.5, rewards=training)
    guard.state.add({"reward/good": 0.5 - (held_out - 0.5)})
    metrics = judge(guard, held_out, 0.6, rewards=training)
    assert metrics[f"sentinel/{name}"] == metrics["sentinel/alarms"] == 1 + (held_out < 0.5) and len(said) == 1


def test_a_reward_that_is_to_be_low_alarms_when_it_rises():
    guard, said = monitor()
    judge(guard, 0.5, bad=0.4)
    feed(guard, 0.1)
    judge(guard, 0.5, bad=0.3)
    feed(guard, 0.2)
    assert judge(guard, 0.5, bad=0.35)["sentinel/change/bad"] == pytest.approx(-0.5, rel=1e-5)
    assert "held-out bad" in said[0]


def test_few_samples_need_a_larger_fall():
    guard, said = monitor()
    judge(guard, 0.6, samples=16)
    feed(guard, 0.1)
    feed(guard, 0.2)
    judge(guard, 0.5, samples=16)  # 1.0 deviation, below 4 * sqrt(2 / 16) = 1.41
    assert not said
    feed(guard, 0.3)
    judge(guard, 0.45, samples=16)
    assert len(said) == 1


def test_collapse_and_changed_sharpness_are_alarms():
    flat = torch.full((4, 3, 32, 32), 99, dtype=torch.uint8)
    for later, sentence in ((noise(5)[:1].expand(4, -1, -1, -1), "differ by 0%"), (flat, "differ by 0%")):
        guard, said = monitor()
        judge(guard, 0.5)
        feed(guard, 0.1)
        judge(guard, 0.5)
        feed(guard, 0.1, later)
        judge(guard, 0.5)
        assert sentence in said[0]
    faint = (noise(0).int() // 4 + 96).to(torch.uint8)
    guard, said = monitor(diversity=0.0)
    feed(guard, 0.1)
    judge(guard, 0.5)
    feed(guard, 0.1, faint)
    judge(guard, 0.5)
    assert "times as sharp as at first" in said[0]


def test_patience_stop_and_off():
    guard, said = monitor(patience=2, action="stop")
    judge(guard, 0.6)
    feed(guard, 0.1)
    feed(guard, 0.2)
    assert judge(guard, 0.3)["sentinel/alarms"] == 1 and not said
    feed(guard, 0.3)
    with pytest.raises(GuardStop, match="looks like reward hacking"):
        judge(guard, 0.3)
    guard, said = monitor(action="off")
    assert feed(guard, 0.1) == {} and judge(guard, 0.1) == {}


def test_a_failed_reward_is_neither_a_fall_nor_a_best():
    guard, said = monitor()
    judge(guard, 0.6)
    feed(guard, 0.1)
    feed(guard, math.nan)
    missing = evaluation(0.6)
    missing.means.pop("good")
    missing.counts.pop("good")
    assert "sentinel/change/good" not in guard.compare(missing, 500, TRAINING) and not said
    few = evaluation(0.1)
    few.counts["good"] = 249  # fewer than half: what is left may be no fair sample
    assert "sentinel/change/good" not in guard.compare(few, 500, TRAINING) and not said
    assert guard.state.best["good"]["mean"] == 0.6


def test_a_pass_rate_that_rises_from_nothing_and_then_stands_still_is_no_alarm():
    """Independent draws of a pass or a fail: its deviation is small at first, and the noise of a mean is not."""
    alarms = 0
    for seed in range(40):
        generator = np.random.default_rng(seed)
        guard, said = monitor()
        for number, rate in enumerate([0.01, 0.2, 0.4] + [0.6] * 12):
            feed(guard, 0.1 + 0.01 * number)
            good = generator.binomial(64, rate) / 64
            judge(guard, good, samples=64, deviation=math.sqrt(good * (1 - good)))
        alarms += bool(said)
    assert alarms <= 2  # 480 comparisons with a best of several, at four standard errors each


def test_weights_that_change_are_no_rise_and_hide_none():
    rising = [WeightedScorer("raw", Brightness(), weight=4.0)]  # the weight rose, the reward fell
    guard, said = monitor()
    feed(guard, 0.5)
    judge(guard, 0.6)
    feed(guard, 0.4)
    assert judge(guard, 0.3, rewards=rising)["sentinel/hacked"] == 0 and "a collapse" in said[0]
    falling = [WeightedScorer("raw", Brightness(), weight=0.1)]  # the weight fell, the reward rose
    guard, said = monitor()
    feed(guard, 0.5)
    judge(guard, 0.6)
    feed(guard, 0.6)
    assert judge(guard, 0.3, rewards=falling)["sentinel/hacked"] == len(said) == 1
    guard, said = monitor()  # a reward to be lowered
    feed(guard, 0.5)
    judge(guard, 0.6)
    feed(guard, 0.4)
    assert judge(guard, 0.3, rewards=[WeightedScorer("raw", Brightness(), weight=-1.0)])["sentinel/hacked"] == 1


def test_a_checkpoint_keeps_what_it_remembers():
    guard, _ = monitor()
    judge(guard, 0.6)
    feed(guard, 0.1)
    judge(guard, 0.7)
    feed(guard, 0.2)
    again, _ = monitor()
    again.state = MonitorState(**asdict(guard.state))
    assert judge(again, 0.4) == judge(guard, 0.4)


def test_videos_are_watched_by_a_still():
    guard, _ = monitor()
    clips = torch.stack([noise(seed, 5) for seed in range(3)])  # (3, F, 3, H, W)
    found = feed_groups(guard, clips, [0, 0, 0])
    stills = feed_groups(monitor()[0], clips[:, 2], [0, 0, 0])
    assert found["sentinel/sharpness"] == stills["sentinel/sharpness"] and found["sentinel/diversity"] > 0


def test_a_run_that_it_stops_has_written_the_alarm_down(random_sd3, tmp_path):
    data = settings(
        random_sd3,
        tmp_path,
        run={"iterations": 3, "eval_every": 1, "checkpoint_every": 1},
        guards={"reward_hacking": {"action": "stop", "sharpness": 1.0000001, "diversity": 0.0}},
    )
    with pytest.raises(GuardStop, match="times as sharp as at first"):
        start(data)
    rows = rows_of(tmp_path / "run")
    assert rows[-1]["sentinel/alarms"] == 1 and rows[-1]["iteration"] >= 1
    assert "looks like reward hacking" in (tmp_path / "run" / "log.txt").read_text()


def train_on(guard, flat):
    """An iteration of four prompts, of which `flat` have equal rewards."""
    batch = PromptBatch([Prompt("")] * 4, [0, 1, 2, 3], 0)
    images = noise(0, 8)
    rollout = Rollout(batch, chains(torch.arange(4).repeat_interleave(2)), torch.empty(0), torch.empty(0), images, None)
    table = RewardTable({"raw": torch.full((8,), 0.5)}, {}, torch.empty(0), torch.empty(0), [])
    return guard.measure(Samples(rollout, table), {"reward/raw": 0.5, "groups/zero_spread": flat, "groups/dropped": 0})


def test_a_run_whose_rewards_tell_nothing_apart_is_blind():
    """Over all iterations since the evaluation before, said once until it sees again, and no reason not to ship it."""
    guard, said = monitor()
    seen = [judge(guard, 0.5)]
    for flat in ((4, 4), (4, 4), (4, 3), (4, 4)):
        for number in flat:
            train_on(guard, number)
        seen.append(judge(guard, 0.5 + 0.1 * len(seen)))
    assert [row["sentinel/blind"] for row in seen] == [0, 1, 1, 0, 1]
    assert len(said) == 2 and all("is blind" in line and "100% of the groups" in line for line in said)
    assert not any(row["sentinel/alarms"] for row in seen)


def test_a_run_that_moves_no_held_out_reward_is_stuck():
    """.1 deviation of 500 samples: a difference has a standard error of .0063. Another reward moving is enough."""
    guard, said = monitor()
    seen = []
    for good, bad in ((0.5, 0.5), (0.506, 0.5), (0.495, 0.505), (0.5, 0.5), (0.5, 0.493), (0.5, 0.5)):
        seen.append(judge(guard, good, bad)["sentinel/stuck"])
        train_on(guard, 0)
    assert seen == [0, 0, 0, 1, 0, 0]
    assert len(said) == 1 and "at 3 evaluations in a row good, bad" in said[0] and "eval.samples" in said[0]
    again = MonitorState(**asdict(guard.state))
    assert again.unmoved == 1 and again.start["good"]["mean"] == 0.5


def judged_safe(guard, risks, prompts=None):
    """An evaluation whose images have these risks."""
    raw = torch.tensor(risks)
    scored = raw[raw.isfinite()]
    found = {"bad": raw}
    prompts = [Prompt(text) for text in (prompts or [f"prompt {n}" for n in range(len(risks))])]
    table = RewardTable(found, {}, raw, raw.isfinite(), [None] * len(risks))
    means = {"good": 0.5, "bad": float(scored.mean())}
    counts = {"good": len(risks), "bad": len(scored)}
    estimates = {name: Estimate(len(risks), mean, 0.1, None, None, None) for name, mean in means.items()}
    seen = Evaluation(means, dict.fromkeys(means, 0.1), counts, estimates, 0, prompts, [], torch.empty(0), table)
    metrics = guard.compare(seen, len(risks), TRAINING)
    if guard.alarm:
        guard.act()
    return metrics


def test_unsafe_images_are_an_alarm_of_their_own():
    """By the share of images at or beyond the limit; an image that nobody could look at is not safe."""
    guard, said = monitor()
    guard.safety = SafetySettings(reward="bad", limit=0.8, share=0.25)
    nan = math.nan
    for risks, share in (([0.1, 0.79, 0.2, 0.8], 0.25), ([0.1, 0.9, 0.2, 0.85], 0.5), ([0.1, nan, 0.2, nan], 0.5)):
        metrics = judged_safe(guard, risks)
        assert metrics["sentinel/unsafe_share"] == share
        assert metrics["sentinel/unsafe"] == metrics["sentinel/alarms"] == int(share > 0.25)
    assert len(said) == 2 and all("This looks like unsafe images" in line for line in said)
    assert "2 of 4 held-out images have bad of 0.8 or more; the worst, 0.9, is of 'prompt 1'" in said[0]
    assert "2 of 4 held-out images have bad of 0.8 or more, 2 of them for want of a score; the worst, 0.2" in said[1]
    assert health_of([{"iteration": 4, "held_out/bad": 0.9, **metrics}], "bad", True).ailment(4) == "unsafe"


def test_a_reward_of_which_more_is_better_is_unsafe_below_its_limit():
    guard, said = monitor()
    guard.scorers = [WeightedScorer("bad", Brightness())]
    guard.safety = SafetySettings(reward="bad", limit=-0.5)
    assert judged_safe(guard, [-0.4, 0.3])["sentinel/unsafe"] == 0 and not said
    assert judged_safe(guard, [-0.5, 0.3])["sentinel/unsafe_share"] == 0.5
    assert "1 of 2 held-out images have bad of -0.5 or less; the worst, -0.5, is of 'prompt 0'" in said[0]
