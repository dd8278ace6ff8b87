"""Train on ranks whose backend gives up after five seconds if nobody says otherwise, as NCCL does after ten minutes.

`SLOW_WRITES` are seconds that the second rank takes longer for each group of a checkpoint.
"""

import os
import sys
import time
from datetime import timedelta

from torch.distributed import distributed_c10d

import diffrl.checkpoint.shards as shards
from diffrl.cli import main

if __name__ == "__main__":
    distributed_c10d.default_pg_timeout = timedelta(seconds=5)
    write = shards.write_group

    def slow(*arguments):
        time.sleep(float(os.environ.get("SLOW_WRITES", 0)) * (os.environ["RANK"] == "1"))
        return write(*arguments)

    shards.write_group = slow
    main(["train", *sys.argv[1:]])
