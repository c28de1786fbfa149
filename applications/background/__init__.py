"""Background temperature: the temperature at which a reference model varies as much as a system at temperature 0."""
