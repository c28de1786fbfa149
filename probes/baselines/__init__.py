"""Baselines, which score questions and answers without hidden states."""
