"""Benchmarks. Each one measures a figure and compares it with a target.

Run one with ``python -m benchmarks.NAME``. The last line of its output is JSON.
"""
