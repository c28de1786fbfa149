"""Report and pictures of a run."""
