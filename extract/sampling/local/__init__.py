"""Local sampler: random draws, batches, and a key-value cache that shares prompts."""
