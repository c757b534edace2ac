"""client.sync: the blocking client: requests, fetcher, producer and transactions."""
