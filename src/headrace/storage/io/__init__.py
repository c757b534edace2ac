"""File system interface and file utilities: preallocation, io_uring, stepwise tasks."""
