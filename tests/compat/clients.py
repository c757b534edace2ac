"""The three Python clients behind one face, so that every promise is asked of each, and across them.

A driver sends and reads records with plain settings; what a client cannot do is not papered over.
"""

from headrace.records.batch import walk
from tests.compat.client_aiokafka import AioKafka
from tests.compat.client_confluent import Confluent
from tests.compat.client_kafka_python import KafkaPython
from tests.integration.raw import RawConnection
from tests.integration.told import told_by

CLIENTS: dict[str, type[Confluent] | type[KafkaPython] | type[AioKafka]] = {
    kind.name: kind for kind in (Confluent, KafkaPython, AioKafka)
}
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def stored_codecs(bootstrap: str, topic: str) -> set[str]:
    """How the batches of partition 0 are compressed in the log: a client may quietly do without."""
    host, port = bootstrap.split(",")[0].rsplit(":", 1)
    told = told_by(host, int(port), topic)
    _, leader_port = told.brokers[told.partitions[0].leader]
    with RawConnection(leader_port) as connection:
        data = connection.fetched(topic)
    return {CODECS[header.codec] for _, header in walk(data)}
