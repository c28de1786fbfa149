"""A server that answers questions with confidences."""
