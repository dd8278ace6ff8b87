"""What a run costs: planned before anything is loaded, and measured while it goes on."""
