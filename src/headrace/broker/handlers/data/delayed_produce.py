"""Delayed Produce requests: appended with acks=all, waiting for the high watermark."""

from collections import Counter
from collections.abc import Sequence
from typing import Protocol
from uuid import UUID

from headrace.broker.network.response_queue import ResponseSlot
from headrace.broker.replica.partition import Partition
from headrace.model.errors import ErrorCode, HeadraceError
from headrace.protocol.frames import Parts
from headrace.protocol.messages.produce import PartitionResult, encode_response
from headrace.protocol.produce_fast_path import ProduceTemplate

Results = list[tuple[str | UUID, list[PartitionResult]]]
TOO_LATE = "not all replicas had the batch in time"


def count_errors(results: Results, errors: Counter[int]) -> None:
    """Counts the errors of a response that is about to be sent."""
    for _, rows in results:
        for row in rows:
            if row.error:
                errors[row.error] += 1


class Wait(Protocol):
    """A delayed Produce; a key of the purgatory until its response is sent."""

    deadline_ms: int

    def expire(self) -> None:
        """Responds with REQUEST_TIMED_OUT. The batches stay in the log; whether they will be committed is unknown."""


ProducePurgatory = dict[Wait, None]


class DelayedProduce:
    """A Produce with acks=all whose batches are appended but not all committed."""

    __slots__ = ("_errors", "_open", "_reply", "_results", "_waits", "correlation_id", "deadline_ms", "version")

    def __init__(
        self,
        reply: ResponseSlot,
        version: int,
        correlation_id: int,
        results: Results,
        deadline_ms: int,
        waits: ProducePurgatory,
        errors: Counter[int],
    ) -> None:
        self._reply = reply
        self._errors = errors
        self.version, self.correlation_id = version, correlation_id
        self._results = results
        self.deadline_ms = deadline_ms
        self._open = 0
        self._waits = waits

    def wait_for(self, partition: Partition, offset: int) -> None:
        self._open += 1
        partition.wait_for_commit(offset, self)

    def committed(self) -> None:
        self._open -= 1
        if not self._open:
            self._answer()

    def failed(self, partition: Partition, error: HeadraceError) -> None:
        self._replace_rows(error.code, str(error), partition)
        self.committed()

    def expire(self) -> None:
        self._replace_rows(ErrorCode.REQUEST_TIMED_OUT, TOO_LATE, None)
        self._answer()

    def _replace_rows(self, code: ErrorCode, message: str, partition: Partition | None) -> None:
        for topic, rows in self._results:
            for number, row in enumerate(rows):
                ours = partition is None or (
                    topic in (partition.topic, partition.topic_id) and row.partition == partition.index
                )
                if ours and row.error == ErrorCode.NONE:
                    rows[number] = PartitionResult(row.partition, code, message=message)

    def _answer(self) -> None:
        if self in self._waits:  # otherwise it has timed out, and this is the late commit
            del self._waits[self]
            count_errors(self._results, self._errors)
            self._reply.send(encode_response(self.version, self.correlation_id, self._results))


class DelayedProducePart:
    """Delayed requests to one partition: a single one, or several that were appended as one and so are committed as
    one.
    """

    __slots__ = ("_errors", "_place", "_reply", "_rows", "_waits", "deadline_ms")

    def __init__(
        self,
        reply: ResponseSlot,
        place: ProduceTemplate,
        rows: Sequence[tuple[int, int, int, int]],
        deadline_ms: int,
        waits: ProducePurgatory,
        errors: Counter[int],
    ) -> None:
        """`rows` has one argument of `ProduceTemplate.reply` for each request."""
        self._reply, self._place, self._rows = reply, place, rows
        self.deadline_ms = deadline_ms
        self._waits, self._errors = waits, errors
        waits[self] = None

    def committed(self) -> None:
        self._answer(self._place.replies(self._rows))

    def failed(self, partition: Partition, error: HeadraceError) -> None:
        self._refuse(error.code, str(error))

    def expire(self) -> None:
        self._refuse(ErrorCode.REQUEST_TIMED_OUT, TOO_LATE)

    def _refuse(self, code: ErrorCode, message: str) -> None:
        results = [(self._place.topic, [PartitionResult(self._place.index, code, message=message)])]
        if self in self._waits:
            self._errors[code] += len(self._rows)
        version = self._place.version
        self._answer([part for row in self._rows for part in encode_response(version, row[0], results)])

    def _answer(self, parts: Parts) -> None:
        if self in self._waits:  # otherwise it has timed out, and this is the late commit
            del self._waits[self]
            self._reply.send(parts)
