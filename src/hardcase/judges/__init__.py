"""Judges: is a found test valid, has it kept its label, which tests show one fault. Importing this loads no torch."""
