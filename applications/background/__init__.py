"""Background temperature, which measures how much the outputs of a system vary at temperature 0."""
