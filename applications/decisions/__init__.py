"""Confidence thresholds for abstention and routing, with a guaranteed bound on the risk."""
