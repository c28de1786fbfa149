"""Scores of answers that are computed from token signals without training."""
