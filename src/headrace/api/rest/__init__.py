"""gateway: REST in front of a broker, in a process of its own. Enters by the front door, as any Kafka client does."""
