"""Scorers of clips."""
