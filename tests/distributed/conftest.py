"""Runs of one process and of two ranks that several files read."""

import pytest


@pytest.fixture(scope="session")
def launched(random_sd3, tmp_path_factory):
    """Folders of the same runs on one process, which holds everything, and on two ranks, which are started once."""
    from tests.distributed.test_distributed import both_ways, shared_run
    from tests.distributed.test_sharding import RUNS

    return both_ways({"shared": shared_run, **RUNS}, random_sd3, tmp_path_factory.mktemp("launched"))
