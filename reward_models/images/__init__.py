"""Scorers of pictures."""
