"""storage: keeps a partition's batches on disk and finds them again. Knows records; has never heard of requests."""
