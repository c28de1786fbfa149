"""Samplers: a model in this process or behind a server."""
