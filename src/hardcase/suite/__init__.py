"""What is done with the findings of a run afterwards."""
