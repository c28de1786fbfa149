"""Baselines that query the store's model, or another model, about questions or answers."""
