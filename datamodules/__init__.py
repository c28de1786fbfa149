"""Data for probes: counts of right answers in a store, splits by question, and the Lightning datamodule."""

from datamodules.batches import Batch
from datamodules.features import FeatureDataModule
from datamodules.table import QuestionTable, load_table

__all__ = ["Batch", "FeatureDataModule", "QuestionTable", "load_table"]
