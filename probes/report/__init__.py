"""Reports of training runs, and shared code for plots and Markdown pages."""
