"""Samplers, which draw answers from a model in this process or on a server."""
