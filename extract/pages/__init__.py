"""Answers to look at: a page whose tokens are shaded by what the signals say of them, and the curve along one answer."""
