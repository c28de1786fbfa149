"""Signals as scores without training: each one pooled over an answer's tokens, against whether the answer is right."""
