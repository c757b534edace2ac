"""metadata.sqlite: the metadata store in a SQLite file."""
