"""Comparison of several phrasings of the same questions."""
