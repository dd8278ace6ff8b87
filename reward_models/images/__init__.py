"""Scorers of images."""
