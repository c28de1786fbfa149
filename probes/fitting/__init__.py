"""How probes are fitted: the modules they inherit from, solvers and calibration."""
