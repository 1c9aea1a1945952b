"""Memories that steer: which unit to push, which strategy to try next, what to mutate. Each works with any search."""
