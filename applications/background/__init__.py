"""Background temperature: the temperature at which a reference varies as much as a system at temperature 0."""
