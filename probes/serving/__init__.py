"""A server that answers questions and returns a confidence with each answer."""
