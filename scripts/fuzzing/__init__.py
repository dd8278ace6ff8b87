"""Attacks on diffrl that anybody can repeat: what `scripts/fuzz.py` and `scripts/attack_runs.py` are made of."""
