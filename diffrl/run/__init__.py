"""A run's life on disk: its directory, journal, progress, summary; starting, stopping and resuming it."""
