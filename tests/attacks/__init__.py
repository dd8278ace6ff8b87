"""Attacks on diffrl that anybody can repeat: what `python -m tests.attacks.fuzz` and its neighbours are made of."""
