"""Voting over repeated answers, and early stopping of sampling."""
