"""The mathematics: tensors in, tensors out; no configuration, device, randomness, logging or I/O."""
