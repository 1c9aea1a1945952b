"""What is done with the tests of a run afterwards."""
