"""Stores of answers that were sampled by other tools."""
