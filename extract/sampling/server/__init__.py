"""Server sampler, which requests answers from an OpenAI-compatible server."""
