"""The one place where images change: moved, blurred, lit, fogged, made noisy, compressed.

Functions take batches of images in [0, 1] and one parameter per row. Spaces of appearance give them
coordinates, corruptions a severity, augmentation and the judge's training data random samples, and
fuzzing the levels of its mutations.
"""
