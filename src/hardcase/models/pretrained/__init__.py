"""Networks that others have trained, from package registries into the cache."""
