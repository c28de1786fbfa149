"""Silence Lightning's routine messages and warnings."""

import logging
import os
import warnings


def quiet_lightning() -> None:
    """Silence Lightning's messages about hardware, workers and loggers."""
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")  # Lightning 2.6 uses deprecated functions
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    remarks = (
        "intended to run from|many workers|LeafSpec|training batches|ranks is zero|configure_optimizers|no optimizer"
    )
    warnings.filterwarnings("ignore", message=f".*({remarks})")
