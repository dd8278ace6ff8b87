"""From images to a table of rewards."""
