"""Durable checkpoints: files with checksums, shards of several ranks, optimiser and generator states."""
