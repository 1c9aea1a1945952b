"""Which hardcase this is."""

VERSION = "0.1.0"
