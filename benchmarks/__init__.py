"""Benchmarks that each measure one figure.

Run one with ``python -m benchmarks.NAME``. The last line of its output is JSON.
"""
