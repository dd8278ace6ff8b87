"""Marks in log.txt by which a reader knows how a run ended, without guessing from the words of a message."""

STOPPED, FAILED, RESUMED = "Stopped: ", "Failed: ", "Resumed after iteration "
"""How lines begin: a guard ended the run, an error did, it goes on."""
