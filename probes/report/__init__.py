"""Reports of training runs, and shared code for pictures and Markdown pages."""
