"""From rewards of samples to advantages of steps."""
