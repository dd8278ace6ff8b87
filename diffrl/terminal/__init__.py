"""What a user sees of a run in a shell, and how it is stopped: progress, signals, exit codes."""
