"""The report: one page that needs nothing but itself, and the same numbers as JSON."""
