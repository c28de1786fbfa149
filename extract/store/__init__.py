"""The on-disk format: questions, samples, grades, signals and asked baselines in one directory."""
