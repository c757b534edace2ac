"""Segments of a log, their indexes and their verification."""
