"""Log-probabilities of given texts: the options of a question, the next token after a prompt, or whole documents."""
