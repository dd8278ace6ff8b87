"""reward_models stands alone: no diffrl, no accelerate."""

import subprocess
import sys

PROGRAM = """
import sys, torch
from reward_models import RewardBatch, load_reward
for name in ("shapes", "shapes_strict"):
    media = torch.full((2, 3, 32, 32), 232, dtype=torch.uint8)
    assert load_reward(name)(RewardBatch(media, ["a red circle", "nonsense"])).ok.tolist() == [True, False]
foreign = {module.partition(".")[0] for module in sys.modules} & {"diffrl", "accelerate", "diffusers", "transformers"}
print(sorted(foreign))
"""


def test_scoring_imports_neither_diffrl_nor_accelerate():
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"
