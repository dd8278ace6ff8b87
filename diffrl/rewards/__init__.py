"""From pictures to a table of rewards."""
