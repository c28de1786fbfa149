"""Load models, and identify them by their weights."""
