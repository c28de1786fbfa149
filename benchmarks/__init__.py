"""Benchmarks: one file per figure, ``python -m benchmarks.NAME``; the last line is JSON."""
