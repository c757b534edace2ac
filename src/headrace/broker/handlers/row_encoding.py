"""Answers made of topics that are made of partitions: encoded a slice at a time, since tools name all there are."""

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
    """What becomes of a wish; its message is for people."""

    code: ErrorCode
    message: str | None = None


CLUSTER_DENIED = Outcome(ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "Cluster authorization failed.")


async def encoded_topics(
    topics: Iterable[tuple[str, Iterable[PartitionRow | None]]],
    topic_row: Callable[[str, tuple[PartitionRow, ...]], TopicRow],
    arrays: str,
    call: RequestContext,
) -> tuple[TopicRow, ...]:
    """The topics as the answer holds them; `arrays` names where, as in "topics.partitions".

    None is a partition that was looked at and of which nothing is to be said. Encoded rows may stand wherever rows
    may: `kafka_messages.encode_element` says how.
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
    """What the facts say of a partition; None if there is no such topic or partition."""
    known = image.topics.get(topic)
    return known.partitions[index] if known is not None and 0 <= index < len(known.partitions) else None
