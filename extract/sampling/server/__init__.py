"""Server sampler: a model behind an OpenAI-compatible server."""
