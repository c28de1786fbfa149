"""Comparison of models, prompts or temperatures on the same questions."""
