"""Answer scores computed from token signals, without training."""
