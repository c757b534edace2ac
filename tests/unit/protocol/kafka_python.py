"""kafka-python's message classes, a third opinion. Importing them warns about its own use of importlib."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    from kafka.protocol import admin, consumer, metadata, producer

__all__ = ["admin", "consumer", "metadata", "producer"]
