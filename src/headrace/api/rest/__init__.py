"""api.rest: the REST API, served by a process of its own. A client of the broker's public Kafka listener."""
