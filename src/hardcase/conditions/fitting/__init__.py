"""Conditions from the field: unlabelled images say which conditions to declare."""
