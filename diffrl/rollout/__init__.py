"""Addressed noise, denoising, and what a rollout keeps."""
