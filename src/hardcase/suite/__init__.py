"""What is done with the failures of a run afterwards."""
