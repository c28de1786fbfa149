"""Saved probes: their file format, loading, scoring, and attaching to a model."""
