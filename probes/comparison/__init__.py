"""A comparison that can be believed: every method out of fold on the same questions, with intervals and corrected tests."""
