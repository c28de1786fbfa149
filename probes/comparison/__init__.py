"""Comparison of methods: out-of-fold confidences for the same questions, with intervals and corrected tests."""
