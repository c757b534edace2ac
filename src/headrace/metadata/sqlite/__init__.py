"""Metadata store in a SQLite file."""
