"""Baselines: scores and confidences that read no hidden states."""
