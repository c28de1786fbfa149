"""Domains: clusters of questions with their accuracy and calibration."""
