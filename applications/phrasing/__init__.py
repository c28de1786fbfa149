"""Comparison of questions about the same facts in different forms."""
