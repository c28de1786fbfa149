"""Token signals as scores of answers without training: pooled over an answer's tokens, tested against its grade."""
