"""What scoring one more sample holds at most, of every published reward with weights: measured on fake tensors.

    python scripts/measure_scorers.py [REWARD ...]

In MiB, float32, beside what `diffrl plan` counts (assets/published/rewards.json). No weights are needed.
"""

import argparse

from measuring.published_scorers import CALLS, sample_bytes

from diffrl.models.published import reward_facts


def main() -> None:
    """Print a line a reward."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rewards", nargs="*", default=sorted(CALLS), metavar="REWARD")
    for name in parser.parse_args().rewards:
        print(
            f"{name:<14} {sample_bytes(name) / 2**20:8.1f}  planned {reward_facts()[name]['call_bytes'] / 2**20:8.1f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
