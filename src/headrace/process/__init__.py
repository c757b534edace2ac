"""process: child processes, restart policy, listening sockets, process set-up."""
