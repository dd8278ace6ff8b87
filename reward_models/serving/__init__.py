"""What the reward server and its client share: the wire format, strict reading, batching, limits, bounded sending."""
