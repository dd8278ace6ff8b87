"""The trainer and everything that knows of configurations, ranks and files."""
