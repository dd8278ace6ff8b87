"""Metrics and the store of samples."""
