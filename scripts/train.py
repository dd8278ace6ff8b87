"""`accelerate launch scripts/train.py CONFIG [a.b=c ...]`: the train command, one process a rank."""

import sys

from diffrl.cli import main

if __name__ == "__main__":
    main(["train", *sys.argv[1:]])
