"""The on-disk format of a store: a directory with questions, samples, grades, signals and model-based baselines."""
