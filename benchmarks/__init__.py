"""Benchmarks that compare figures with targets. The last line of ``python -m benchmarks.NAME`` is JSON."""
