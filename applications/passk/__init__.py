"""Pass@K: the probability that at least one of K answers to a question is right."""
