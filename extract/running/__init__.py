"""Command lines, exit status, progress bars, locks and memory."""
