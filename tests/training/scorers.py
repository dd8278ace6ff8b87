"""Rewards for tests of the trainer, named in configurations as "tests.training.scorers:Brightness"."""

import os
import signal
import time
from dataclasses import replace

import torch

from reward_models.base import RewardOutput, ScorerSpec


class Brightness:
    """Mean of one colour channel, in [0, 1]: works for any prompt and differs between any two pictures or videos."""

    spec = ScorerSpec("brightness", "mean of a colour channel", (0.0, 1.0), media=("image", "video"))

    def __init__(self, channel=0):
        self.channel = channel

    def __call__(self, batch):
        channel = batch.media.select(-3, self.channel).float() / 255
        raw = channel.flatten(1).mean(dim=1)
        half = {"top": channel[..., :16, :].flatten(1).mean(dim=1)}
        return RewardOutput(raw, torch.ones(len(raw), dtype=torch.bool), [None] * len(raw), half)

    def to(self, device):
        return self


class Green(Brightness):
    """Brightness of the green channel, under a name of its own."""

    def __init__(self):
        super().__init__(channel=1)


class Telling(Brightness):
    """Brightness that says what the first value of each sample is; `quiet` says nothing."""

    def __init__(self, quiet=False):
        super().__init__()
        self.quiet = quiet

    def __call__(self, batch):
        notes = [f"first is {int(media.flatten()[0])}" for media in batch.media]
        return replace(super().__call__(batch), notes=() if self.quiet else notes)


class Constant(Brightness):
    """The same for every picture."""

    def __call__(self, batch):
        count = len(batch.prompts)
        return RewardOutput(torch.full((count,), 0.5), torch.ones(count, dtype=torch.bool), [None] * count)


class Flaky(Brightness):
    """Brightness that fails for the first `failures` samples of every batch whose prompt contains `word`.

    `how` is "nan" or "inf" for a value that is returned as if it were good, "report" for a failure that is owned up to.
    """

    def __init__(self, word="", failures=1, how="nan"):
        super().__init__()
        self.word, self.failures, self.how = word, failures, how

    def __call__(self, batch):
        found = super().__call__(batch)
        raw, ok, errors = found.raw.clone(), found.ok.clone(), list(found.errors)
        for i in [i for i, prompt in enumerate(batch.prompts) if self.word in prompt][: self.failures]:
            if self.how == "report":
                ok[i], errors[i] = False, "no such picture"
            else:
                raw[i] = float(self.how)
        return RewardOutput(raw, ok, errors, found.parts)


class DiesOnTheSecondRank(Brightness):
    """Brightness whose process is killed, as for want of memory, if it is not the first of its run."""

    def __call__(self, batch):
        if os.environ.get("RANK") == "1":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().__call__(batch)


class SleepsOnTheSecondRank(Brightness):
    """Brightness whose first call takes `seconds` longer on every rank but the first."""

    def __init__(self, seconds):
        super().__init__()
        self.seconds = seconds

    def __call__(self, batch):
        seconds, self.seconds = self.seconds, 0
        time.sleep(seconds * (os.environ.get("RANK", "0") != "0"))
        return super().__call__(batch)


class FlatFor(Brightness):
    """Brightness, but the same for all pictures of prompts with `word`: nothing can be learnt from those."""

    def __init__(self, word="red"):
        super().__init__()
        self.word = word

    def __call__(self, batch):
        found = super().__call__(batch)
        flat = torch.tensor([self.word in prompt for prompt in batch.prompts])
        return RewardOutput(torch.where(flat, 0.5, found.raw), found.ok, found.errors, found.parts)
