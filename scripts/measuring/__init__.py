"""What `scripts/reproduce_results.py` measures, and how it tells it."""
