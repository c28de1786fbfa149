"""The saved probe: format, loading, scoring, attaching."""
