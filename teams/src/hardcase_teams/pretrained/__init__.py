"""Networks that others have trained: their layers, and the way from a package's weights to them."""
