"""What several ranks have to agree on: sums and gathers, sharded weights, calls in step."""
