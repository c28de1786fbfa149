"""Background temperature, a measure of how much a system's outputs vary at temperature 0."""
