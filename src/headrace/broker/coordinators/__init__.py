"""coordinators: the shells of groups and transactions, each over the partitions of its internal topic."""
