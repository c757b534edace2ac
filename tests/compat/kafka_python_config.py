"""A plugin for kafka-python's own suite: its consumers look at the topics again every second, not every five minutes.

kafka-python 3.0.12 can forget a subscription: where a consumer subscribes while the client's first Metadata request, of
no topics yet, is under way, the answer to that one counts as the answer to the subscription. The client then asks its
broker for nothing at all until the metadata's age is up (seen in 5 of 1,440 tests on a busy machine; the broker hears
nothing for as long). With an age of a second it is a second, which no test of the suite minds.
"""

from kafka import KafkaConsumer

KafkaConsumer.DEFAULT_CONFIG["metadata_max_age_ms"] = 1_000
