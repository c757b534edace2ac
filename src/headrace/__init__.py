"""headrace: a Kafka-compatible message queue you can pip install."""

__version__ = "0.1.0"
