"""storage.io: the file system port and what works on files: preallocation, io_uring, stepwise work."""
