"""Confidence thresholds for abstention and routing, with a guaranteed risk."""
