"""Encodes responses of topics with partitions in slices, because tools request all partitions of a cluster at once."""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple, TypeVar, cast

from headrace.broker.api.context import RequestContext
from headrace.broker.runtime.cooperative import run_in_slices
from headrace.core.image.metadata_image import MetadataImage, PartitionRegistration
from headrace.model.errors import ErrorCode
from headrace.protocol.codec import encode_element

TopicRow = TypeVar("TopicRow")
PartitionRow = TypeVar("PartitionRow")


class Outcome(NamedTuple):
    """Result of one row of a request; the message is for operators."""

    code: ErrorCode
    message: str | None = None


CLUSTER_DENIED = Outcome(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")


async def encoded_topics(
    topics: Iterable[tuple[str, Iterable[PartitionRow | None]]],
    topic_row: Callable[[str, tuple[PartitionRow, ...]], TopicRow],
    arrays: str,
    call: RequestContext,
) -> tuple[TopicRow, ...]:
    """Returns the encoded topics; `arrays` is the path of the partitions in the response, as in "topics.partitions".

    A row of None is omitted. Encoded rows may stand wherever rows may (see `kafka_messages.encode_element`).
    """
    api, version = call.api_key, call.api_version
    encoded: list[bytes] = []

    def encode_each() -> Iterator[None]:
        for name, rows in topics:
            partitions: list[bytes] = []
            for row in rows:
                if row is not None:
                    partitions.append(encode_element(api, version, arrays, row))
                yield
            topic = topic_row(name, cast("tuple[PartitionRow, ...]", tuple(partitions)))
            encoded.append(encode_element(api, version, arrays.partition(".")[0], topic))
            yield

    await run_in_slices(encode_each())
    return cast("tuple[TopicRow, ...]", tuple(encoded))


def partition_state(image: MetadataImage, topic: str, index: int) -> PartitionRegistration | None:
    """Returns the partition's registration; None if the topic or partition does not exist."""
    known = image.topics.get(topic)
    return known.partitions[index] if known is not None and 0 <= index < len(known.partitions) else None
