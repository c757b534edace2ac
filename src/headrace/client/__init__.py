"""client: speaking to a broker from outside. Knows the protocol and librdkafka; nothing of the broker's inside."""
