"""The training loop and its stations: sampling, crediting, the update, guards, held-out evaluation."""
