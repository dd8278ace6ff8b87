"""Trees as pages and reports show them: names and sums, places, the figure, the panel, the story."""
