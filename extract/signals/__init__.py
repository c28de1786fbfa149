"""Signals: named functions of one teacher-forced forward pass. `registry` lists them; `reading` computes them."""
