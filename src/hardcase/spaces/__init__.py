"""Where candidates live: pixels, or the latent codes of a generator."""
