"""Votes over repeated answers, and sampling that stops early."""
