"""Metrics as pure functions and torchmetrics, with intervals and tests."""
