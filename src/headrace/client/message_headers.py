"""Headers of a message that librdkafka has fetched, including those whose names are not UTF-8.

Kafka's brokers store such names. confluent-kafka raises for them at the first call of `headers`, and the second call
crashes the process with a list that contains a null pointer.
"""

import logging
from operator import methodcaller
from typing import TYPE_CHECKING

from headrace.client.aio.producer import Headers

if TYPE_CHECKING:
    from confluent_kafka import Message

log = logging.getLogger(__name__)

# A header with this name and no value replaces headers that cannot be read.
UNREADABLE_NAME = "\ufffd"
# Not `message.headers()`: a call that the interpreter has specialized (PEP 659) returns that list, and its exception is
# raised by the next operation.
_read = methodcaller("headers")


def headers_of(message: "Message") -> Headers:
    """Returns the message's headers; no other code may call `message.headers()` before this."""
    try:
        found: Headers = list(_read(message) or ())
    except SystemError:
        message.set_headers([(UNREADABLE_NAME, None)])
        log.warning(
            "%s-%s offset %s: a header's name is not UTF-8; the message is delivered without its headers. "
            "Reading the partition by offset shows them",
            message.topic(),
            message.partition(),
            message.offset(),
        )
        return [(UNREADABLE_NAME, None)]
    return found
