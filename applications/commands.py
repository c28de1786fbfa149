"""Functions that implement the commands of ``python -m applications``."""
