"""Making a topic that a client needs for itself."""

from collections.abc import Mapping
from datetime import timedelta

from headrace.client.blocking.cluster import Cluster, check
from headrace.model.errors import ErrorCode

_DEFAULT_REPLICATION = -1  # as the cluster's own default has it
_CREATION = timedelta(seconds=30)


def ensure_topic(cluster: Cluster, name: str, configs: Mapping[str, str] | None = None) -> None:
    """The topic exists afterwards, with one partition and these configs if this call made it."""
    from kio.schema.create_topics.v5.request import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
    from kio.schema.create_topics.v5.response import CreateTopicsResponse
    from kio.schema.types import TopicName
    from kio.static.primitive import i16, i32, i32Timedelta

    topic = CreatableTopic(
        name=TopicName(name),
        num_partitions=i32(1),
        replication_factor=i16(_DEFAULT_REPLICATION),
        assignments=(),
        configs=tuple(CreatableTopicConfig(name=key, value=value) for key, value in (configs or {}).items()),
    )
    request = CreateTopicsRequest(topics=(topic,), timeout=i32Timedelta.parse(_CREATION))

    def attempt() -> None:
        if cluster.topic(name) is not None:
            return
        (row,) = cluster.any_connection().call(request, CreateTopicsResponse).topics
        if int(row.error_code) != ErrorCode.TOPIC_ALREADY_EXISTS:
            check(row.error_code, f"creating the topic {name}")

    cluster.patiently(f"finding the topic {name}", attempt)
