"""Published experiments, repeated: ours beside the paper's. ``hardcase reproduce NAME`` runs one of the table's rows."""
