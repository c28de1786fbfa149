"""Answer scores that are computed from token signals without training."""
