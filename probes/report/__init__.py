"""Report and pictures of a training run."""
