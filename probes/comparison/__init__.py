"""Compare probes and baselines out of fold on the same questions, with confidence intervals and corrected tests."""
