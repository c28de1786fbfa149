"""Baselines that query a model, the store's or another one, about questions or answers."""
