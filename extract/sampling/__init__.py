"""Samplers: k answers to each question, drawn with keyed uniforms so that no batch changes them."""
