"""model: the nouns everyone shares: ids, errors with Kafka's codes, settings, the clock port. Knows nobody."""
