"""Base classes, solvers and calibration for fitting probes."""
