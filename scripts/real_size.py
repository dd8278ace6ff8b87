"""Train one iteration of a published architecture with random weights on this CPU, and hold its memory to the plan.

    python scripts/real_size.py sana            # or sd3, wan; minutes, up to 14 GiB

Text encoders have one layer. Peak memory is what the process has for itself, mapped files and libraries apart. Prints
one line; nothing is downloaded.
"""

import argparse
import ctypes
import json
import resource
from pathlib import Path
from tempfile import TemporaryDirectory

import torch

from diffrl.doctor.iterations import Size, real_iteration

M_MMAP_THRESHOLD = -3
SMALL = (
    "prompts.per_iteration=1",
    "rollout.steps=2",
    "rollout.tree={roots: 1, branches: 2, splits: [0], correlation: 4.0}",
    "rollout.micro_batch=2",
    "rollout.decode_batch=1",
    "train.micro_batch=1",
    "eval={samples: 1, steps: 2, batch: 1, rewards: [{name: contrast}]}",
    "model.height=256",
    "model.width=256",
)
SIZES = {
    "sana": Size("Efficient-Large-Model/Sana_600M_512px_diffusers", "sana/diffrl", SMALL),
    "sd3": Size("stabilityai/stable-diffusion-3.5-medium", "sd3/diffrl", SMALL),
    "wan": Size(
        "Wan-AI/Wan2.1-T2V-1.3B-Diffusers",
        "wan/diffrl",
        (
            *SMALL,
            "model.frames=5",
            "rewards=[{name: motion_smoothness_proxy}]",
            "eval={samples: 1, steps: 2, batch: 1, rewards: [{name: dynamic_degree_proxy}]}",
        ),
    ),
}


def main() -> None:
    """Run one, and print what it found."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--limit", type=float, default=0.0, help="GiB of address space (RLIMIT_AS); 0 is no limit.")
    parser.add_argument("--json", type=Path, help="Also write what was found here.")
    arguments = parser.parse_args()
    if arguments.limit:
        resource.setrlimit(resource.RLIMIT_AS, (int(arguments.limit * 2**30),) * 2)
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 2**16)  # or glibc keeps what is freed, and the peak is of its heap
    with TemporaryDirectory() as folder:
        measured = real_iteration(SIZES[arguments.size], Path(folder), torch.device("cpu"))
    print(f"{arguments.size}: {'within' if measured.passed else 'OUTSIDE of'} its bounds: {measured.measured}")
    if arguments.json:
        arguments.json.write_text(json.dumps(measured.facts, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
