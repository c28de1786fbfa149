"""Log-probabilities of given texts: options of a question, next tokens of a prompt, and perplexity of documents."""
