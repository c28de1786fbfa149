"""Background temperature: how much the outputs of a system vary at temperature 0."""
