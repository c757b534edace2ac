"""storage.segment: segments, their indexes and checks."""
