"""Thresholds for abstaining and routing whose risk is bounded with a requested probability."""
