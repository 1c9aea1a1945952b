"""Judges at work: trained for a data set, calibrated on people, asked about a run."""
