"""What a tagger, detector or segmenter says of an image, and what it must go on saying."""
