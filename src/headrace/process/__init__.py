"""process: child processes, restart policy, listening sockets, set-up of a process."""
