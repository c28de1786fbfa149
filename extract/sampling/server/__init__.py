"""Sampler for a model behind an OpenAI-compatible server."""
