"""A Produce that is written and waits for its replicas."""

from uuid import UUID

from headrace.broker.partition import Partition
from headrace.broker.reply import Reply
from headrace.model.errors import ErrorCode, HeadraceError
from headrace.protocol.produce import PartitionResult, encode_response

Results = list[tuple[str | UUID, list[PartitionResult]]]


class ProduceWait:
    """A Produce with acks=all whose batches are written but not yet committed everywhere."""

    __slots__ = ("_open", "_reply", "_results", "_waits", "correlation_id", "deadline_ms", "version")

    def __init__(
        self,
        reply: Reply,
        version: int,
        correlation_id: int,
        results: Results,
        deadline_ms: int,
        waits: dict["ProduceWait", None],
    ) -> None:
        self._reply = reply
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
        """The client's patience is over. The batches stay written; whether they get committed is unknown."""
        self._replace_rows(ErrorCode.REQUEST_TIMED_OUT, "not all replicas had the batch in time", None)
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
        if self in self._waits:  # else the answer was "timed out", and this is the commit coming late
            del self._waits[self]
            self._reply.send(encode_response(self.version, self.correlation_id, self._results))
