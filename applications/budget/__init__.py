"""Allocation of a sampling budget to the questions where further answers help most."""
