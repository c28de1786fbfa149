"""Local sampler, which draws answers from a model in this process."""
