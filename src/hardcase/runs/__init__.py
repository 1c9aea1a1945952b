"""A run on disk: the run folder, its ledger, its repair, and the workers that fill it."""
