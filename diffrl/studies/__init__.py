"""Experiments over several runs or pools: `diffrl compare` and `diffrl fidelity`."""
