"""What leaves a run: pictures, weights for diffusers, quantised models."""
