"""Text and HTML views of a store."""
