"""client: Kafka clients. Uses the protocol and librdkafka; imports nothing of the broker."""
