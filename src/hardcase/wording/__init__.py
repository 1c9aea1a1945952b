"""Every sentence that the terminal, the report and the gate say of a run."""
