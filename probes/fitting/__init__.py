"""Fitting of probes: base classes, solvers and calibration."""
