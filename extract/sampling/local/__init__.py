"""Sampler in this process: draws, batches, and the cache that shares the prompt."""
