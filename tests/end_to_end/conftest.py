"""Whole runs happen in a small world on disk."""

from toy_world import world  # noqa: F401 - a fixture
