"""Scores as images come: the same table whatever the pieces, threads that wait for nothing, failures that return."""

import os
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from diffrl.errors import GuardStop
from diffrl.records import Prompt
from diffrl.rewards.lanes import Lane
from diffrl.rewards.score import Scoring, WeightedScorer, score
from reward_models import RewardError
from reward_models.base import ScorerSpec, WithoutWeights, output_of_rows
from tests.patience import LONG, until

PROMPTS = [Prompt(f"prompt {i % 3}") for i in range(11)]
IMAGES = torch.randint(0, 256, (11, 3, 5, 7), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


class Mean(WithoutWeights):
    """Mean grey level over 255; remembers its batches and the threads that asked."""

    spec = ScorerSpec("mean", "mean", (0.0, 1.0))

    def __init__(self):
        self.sizes, self.threads = [], []

    def __call__(self, batch):
        self.sizes.append(len(batch))
        self.threads.append(threading.current_thread().name)
        return output_of_rows([(float(picture.double().mean()) / 255, {}, None) for picture in batch.media])


class Rank(Mean):
    """How many of its group are darker: depends on the whole group."""

    spec = ScorerSpec("rank", "rank", (0.0, 20.0), scope="group")

    def __call__(self, batch):
        self.sizes.append(len(batch))
        means = batch.media.double().flatten(1).mean(1)
        values = {}
        for rows in batch.group_rows():
            for row in rows:
                values[row] = float((means[rows] < means[row]).sum())
        return output_of_rows([(values[row], {}, None) for row in range(len(batch))])


def brute_force_ranks(keys):
    means = [float(picture.double().mean()) for picture in IMAGES]
    return [sum(keys[j] == keys[i] and means[j] < means[i] for j in range(len(keys))) for i in range(len(keys))]


@pytest.mark.parametrize("lane", [None, "own"])
@pytest.mark.parametrize("pieces", [[1] * 11, [3, 1, 5, 2]])
def test_the_table_does_not_depend_on_the_pieces(pieces, lane):
    first, second = Mean(), Rank()
    scorers = [
        WeightedScorer("mean", first, batch_size=4, lane=Lane("a") if lane else None),
        WeightedScorer("rank", second, batch_size=4, lane=Lane("b") if lane else None),
    ]
    groups = [0] * 4 + [1] * 4 + [2] * 3
    scoring = Scoring(scorers, PROMPTS, groups)
    for piece in IMAGES.split(pieces):
        scoring.add(piece)
    table = scoring.table()
    assert table.raw["mean"].tolist() == pytest.approx([float(p.double().mean()) / 255 for p in IMAGES])
    assert table.raw["rank"].tolist() == brute_force_ranks(groups)
    assert first.sizes == [4, 4, 3] and second.sizes == [4, 4, 3]  # groups are never cut


def test_a_lane_scores_while_pictures_are_still_coming():
    started, go_on = threading.Event(), threading.Event()

    class Slow(Mean):
        def __call__(self, batch):
            started.set()
            assert go_on.wait(LONG)
            return super().__call__(batch)

    scorer = Slow()
    scoring = Scoring([WeightedScorer("slow", scorer, batch_size=4, lane=Lane("slow"))], PROMPTS)
    scoring.add(IMAGES[:4])
    assert started.wait(LONG)  # at work, though seven images are missing and the batch is not done
    scoring.add(IMAGES[4:])
    go_on.set()
    assert bool(scoring.table().ok.all()) and set(scorer.threads) == {"reward-slow"}


def test_gradients_are_off_in_a_lane():
    class Asks(Mean):
        def __call__(self, batch):
            assert not torch.is_grad_enabled()
            return super().__call__(batch)

    score([WeightedScorer("asks", Asks(), lane=Lane("x"))], IMAGES, PROMPTS)


@pytest.mark.parametrize("lane", [None, Lane("raises")])
def test_what_a_scorer_raises_comes_back_to_whoever_waits(lane):
    class Refuses(Mean):
        def __call__(self, batch):
            raise RewardError("no metadata")

    scoring = Scoring([WeightedScorer("refuses", Refuses(), batch_size=4, lane=lane)], PROMPTS)
    scoring.add(IMAGES)
    with pytest.raises(RewardError, match="no metadata"):
        scoring.table()


@pytest.mark.parametrize(("how", "lane"), [(time.sleep, None), (threading.Event().wait, "own"), ("stubborn", "own")])
@pytest.mark.long
def test_a_scorer_that_hangs_stops_the_run_in_time(how, lane):
    class Hangs(Mean):
        def __call__(self, batch):
            try:
                (time.sleep if how == "stubborn" else how)(LONG)
            except BaseException:
                if how != "stubborn":
                    raise
                time.sleep(LONG)

    begin = time.monotonic()
    with pytest.raises(GuardStop, match=r"The reward hangs has not answered for 0.2 seconds \(rewards.timeout\)"):
        score([WeightedScorer("hangs", Hangs(), lane=lane and Lane(lane), timeout=0.2)], IMAGES, PROMPTS)
    assert time.monotonic() - begin < LONG / 2


def test_a_reward_is_not_blamed_for_the_one_that_it_queues_behind():
    class Hangs(Mean):
        def __call__(self, batch):
            time.sleep(LONG)

    lane = Lane("shared")
    scorers = [
        WeightedScorer("patient", Mean(), batch_size=11, lane=lane),
        WeightedScorer("hangs", Hangs(), batch_size=4, lane=lane, timeout=0.2),
    ]
    scoring = Scoring(scorers, PROMPTS)
    scoring.add(IMAGES[:4])  # the first in the queue is the one that hangs, the first that is waited for the other
    scoring.add(IMAGES[4:])
    begin = time.monotonic()
    with pytest.raises(GuardStop, match="The reward hangs has not answered for 0.2 seconds"):
        scoring.table()
    assert time.monotonic() - begin < LONG / 2


def test_an_alarm_leaves_nothing_behind():
    """Nor does it ring where the scorer is done in time, in threads that have none, or where the scorer has its own."""

    class RingsItself(Mean):
        def __call__(self, batch):
            signal.signal(signal.SIGALRM, lambda number, frame: self.sizes.append("rang"))
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            until(lambda: self.sizes)
            return super().__call__(batch)

    before = signal.getsignal(signal.SIGALRM)
    for scorer in (Mean(), RingsItself()):
        table = score([WeightedScorer("a", scorer, timeout=LONG)], IMAGES, PROMPTS)
        assert bool(table.ok.all()) and signal.getsignal(signal.SIGALRM) is before
        assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(score, [WeightedScorer("a", Mean(), timeout=LONG)], IMAGES, PROMPTS).result().ok.all()


@pytest.mark.parametrize(("error", "lane"), [(TimeoutError("theirs"), Lane("theirs")), (SystemExit(0), None)])
def test_a_timeout_or_an_exit_of_the_scorer_itself_is_its_mistake(error, lane):
    class Raises(Mean):
        def __call__(self, batch):
            raise error

    with pytest.raises(RewardError, match=f"The reward mine failed on .*{type(error).__name__}: {error}"):
        score([WeightedScorer("mine", Raises(), lane=lane, timeout=60 if lane else None)], IMAGES, PROMPTS)


def test_a_signal_is_heard_while_a_reward_is_waited_for():
    class Hangs(Mean):
        def __call__(self, batch):
            os.kill(os.getpid(), signal.SIGUSR1)
            time.sleep(LONG)

    def told(number, frame):
        raise InterruptedError

    before, begin = signal.signal(signal.SIGUSR1, told), time.monotonic()
    try:
        with pytest.raises(InterruptedError):
            score([WeightedScorer("hangs", Hangs(), lane=Lane("hangs"), timeout=LONG)], IMAGES, PROMPTS)
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert time.monotonic() - begin < LONG / 2


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda out: replace(out, raw=torch.cat([out.raw, out.raw[:1]])), r"`raw` must be of shape \(4,\). Got \(5,\)"),
        (lambda out: replace(out, ok=out.ok[1:]), r"`ok` must be of shape \(4,\). Got \(3,\)"),
        (lambda out: replace(out, ok=out.ok.long()), "`ok` of bool"),
    ],
)
def test_an_output_of_another_size_never_reaches_the_table(change, sentence):
    class Wrong(Mean):
        def __call__(self, batch):
            return change(super().__call__(batch))

    with pytest.raises(RewardError, match=sentence):
        score([WeightedScorer("wrong", Wrong(), batch_size=4)], IMAGES[:8], PROMPTS[:8])


def test_time_in_the_queue_is_not_a_rewards_own():
    class Slow(Mean):
        def __call__(self, batch):
            time.sleep(0.0 if self.sizes else 2 * limit)
            return super().__call__(batch)

    lane = Lane("shared")
    for limit in (0.2, 15):  # more, where the machine stood still
        scorers = [
            WeightedScorer("fast", Mean(), batch_size=11, lane=lane, timeout=limit),
            WeightedScorer("slow", Slow(), batch_size=4, lane=lane),
        ]
        scoring = Scoring(scorers, PROMPTS)
        for pictures in (IMAGES[:4], IMAGES[4:]):  # the slow one is at work when the fast one is asked
            scoring.add(pictures)
        try:
            assert bool(scoring.table().ok.all())
            break
        except GuardStop:
            if limit > 1:
                raise


@pytest.mark.parametrize("weight", [0.0, 1.0])
def test_a_reward_cannot_change_what_another_one_sees(weight):
    kept = []

    class Keeps(Mean):
        def __call__(self, batch):
            kept.append(batch)
            return super().__call__(batch)

    class Blackens(Mean):
        def __call__(self, batch):
            batch.media.zero_()
            return super().__call__(batch)

    class Later(Mean):
        """Changes what others were given before, not what it is given."""

        def __call__(self, batch):
            kept[0].media.zero_()
            kept[0].metadata[0]["seen"] = True
            return super().__call__(batch)

    pictures, prompts = IMAGES.clone(), [Prompt(prompt.text, {"seen": False}) for prompt in PROMPTS]
    scorers = [WeightedScorer("a", Keeps()), WeightedScorer("b", Later(), weight), WeightedScorer("c", Mean())]
    table = score(scorers, pictures, prompts)
    assert table.raw["a"].equal(table.raw["c"]) and pictures.equal(IMAGES)
    assert all(prompt.metadata == {"seen": False} for prompt in prompts)
    with pytest.raises(RewardError, match=r"The reward b works in place on batch\.media"):
        score([WeightedScorer("a", Mean()), WeightedScorer("b", Blackens(), weight)], pictures, prompts)
    assert pictures.equal(IMAGES)
