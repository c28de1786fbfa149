"""Loading models and telling them apart by their weights."""
