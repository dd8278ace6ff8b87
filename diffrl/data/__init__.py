"""Prompts: where they come from, which an iteration takes, and the embedded verifiable world."""
