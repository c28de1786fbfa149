"""Applications of repeated sampling: pass@k, sampling budgets, voting and sequential sampling."""
