"""Out-of-fold comparison of probes and baselines on the same questions, with intervals and significance tests."""
