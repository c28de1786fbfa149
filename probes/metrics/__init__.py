"""Metrics for confidences, with confidence intervals and significance tests."""
