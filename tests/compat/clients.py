"""The three Python clients behind one face, so that every promise is asked of each, and across them.

A driver sends and reads records with plain settings; what a client cannot do is not papered over.
"""

from headrace.records.batch import walk
from tests.compat.client_aiokafka import AioKafka
from tests.compat.client_confluent import Confluent
from tests.compat.client_kafka_python import KafkaPython
from tests.integration.raw import RawConnection

CLIENTS: dict[str, type[Confluent] | type[KafkaPython] | type[AioKafka]] = {
    kind.name: kind for kind in (Confluent, KafkaPython, AioKafka)
}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def stored_codecs(bootstrap: str, topic: str) -> set[str]:
    """How the batches of partition 0 are compressed in the log: a client may quietly do without."""
    with RawConnection(int(bootstrap.rsplit(":", 1)[1])) as connection:
        data = connection.fetched(topic)
    return {CODECS[header.codec] for _, header in walk(data)}
