"""Data for probes: tables of a store's answers, splits by question, and the Lightning datamodule."""

from datamodules.batches import Batch
from datamodules.features import FeatureDataModule
from datamodules.table import QuestionTable, load_table

__all__ = ["Batch", "FeatureDataModule", "QuestionTable", "load_table"]
