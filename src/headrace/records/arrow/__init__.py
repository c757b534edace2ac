"""Conversion between record batches and Arrow columns."""
