"""Log-probabilities of answer options, of the next token after a prompt, or of whole texts."""
