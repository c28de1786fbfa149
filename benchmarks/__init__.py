"""Benchmarks compare measurements with targets. The last line that ``python -m benchmarks.NAME`` prints is JSON."""
