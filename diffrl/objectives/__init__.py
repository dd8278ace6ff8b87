"""Losses over records; one file each."""
