"""Audit of a question set: how well properties of the questions predict the measured accuracy."""
