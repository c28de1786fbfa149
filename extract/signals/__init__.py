"""Signals, computed in one teacher-forced forward pass. `registry` lists them, and `reading` computes them."""
