"""Benchmarks that compare measurements with targets. The last line of ``python -m benchmarks.NAME`` is JSON."""
