"""Fetch sessions (KIP-227) on the leader: a consumer or follower names its partitions once, then only changes.

Determines the partitions of a Fetch request and the rows of an incremental response. Pure; performs no I/O. Time and
session ids are arguments.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from uuid import UUID

from headrace.model.errors import ErrorCode, FetchSessionNotFound, InvalidFetchSessionEpoch, RequestError
from headrace.protocol.messages.fetch import FetchPartition, FetchRequest, PartitionRow

NO_SESSION = 0
FINAL_EPOCH = -1
INITIAL_EPOCH = 0
EPOCH_MAX = 2**31 - 1

# As in Kafka: a session that was idle for two minutes may be evicted for a new one.
IDLE_BEFORE_EVICTION_MS = 120_000

# Upper bound of the memory for one cached partition: its row, its key, its dict entry and a topic name of its own with
# the maximal length. Measured: 700 bytes; with ids or short names 450.
PARTITION_BYTES = 768
# Limit for the partitions of all sessions together: 87,000 of them, enough for 1,000 consumers (the default number of
# slots) with 50 partitions each beside three followers with 10,000 each. Without a limit, 1,000 sessions that were
# created by requests of 8 MiB take gigabytes.
BYTES_MAX = 64 * 1024 * 1024

TopicKey = str | UUID
Wanted = tuple[TopicKey, FetchPartition]


class FetchSessionTopicIdError(RequestError):
    """A session uses either topic names or topic ids until it ends."""

    code = ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


@dataclass(slots=True)
class CachedPartition:
    wanted: FetchPartition
    # Last values sent to the client. A row with equal values is left out of the response.
    high_watermark: int = -1
    log_start_offset: int = -1
    answered: FetchPartition | None = None  # the last request that was answered without an error

    def is_news(self, row: PartitionRow) -> bool:
        """Returns whether the response must include this row."""
        return (
            row.error != ErrorCode.NONE
            or row.preferred_replica != -1
            or row.diverging is not None
            or (row.records is not None and row.records.length > 0)
            or row.high_watermark != self.high_watermark
            or row.log_start_offset != self.log_start_offset
        )

    def told(self, row: PartitionRow) -> None:
        # After an error the next response includes the partition, whatever its row contains. The same holds for a
        # follower that has to truncate its log first, and until then ignores the high watermark.
        failed = row.error != ErrorCode.NONE or row.diverging is not None
        self.high_watermark = -1 if failed else row.high_watermark
        self.log_start_offset = -1 if failed else row.log_start_offset


@dataclass(slots=True)
class FetchSession:
    session_id: int
    uses_topic_ids: bool
    last_used_ms: int
    is_follower: bool = False
    next_epoch: int = 1
    partitions: dict[tuple[TopicKey, int], CachedPartition] = field(default_factory=dict)

    def update(self, request: FetchRequest) -> None:
        for topic, partitions in request.topics:
            for wanted in partitions:
                cached = self.partitions.get((topic, wanted.partition))
                if cached is None:
                    self.partitions[(topic, wanted.partition)] = CachedPartition(wanted)
                else:
                    cached.wanted = wanted
        for topic, indexes in request.forgotten:
            for index in indexes:
                self.partitions.pop((topic, index), None)

    def wanted(self) -> list[Wanted]:
        return [(topic, cached.wanted) for (topic, _), cached in self.partitions.items()]

    def news(self, rows: Iterator[tuple[TopicKey, PartitionRow]]) -> list[tuple[TopicKey, PartitionRow]]:
        """Returns the rows to send.

        Partitions that returned data move to the end of the queue, so that all get their share.
        """
        worth = []
        for topic, row in rows:
            cached = self.partitions.get((topic, row.partition))
            if cached is None or not cached.is_news(row):
                continue
            cached.told(row)
            worth.append((topic, row))
            if row.records is not None and row.records.length:
                self.partitions[(topic, row.partition)] = self.partitions.pop((topic, row.partition))
        return worth


class FetchSessionCache:
    """All fetch sessions of a broker, in order of last use: at most `slots`, and at most `bytes_max` together.

    An idle session may be evicted for any other, a consumer's session for a follower's at any time. A client without
    a session, or whose session was evicted, sends full requests.
    """

    def __init__(self, slots: int, bytes_max: int = BYTES_MAX) -> None:
        self._slots = slots
        self._partitions_max = bytes_max // PARTITION_BYTES
        self._partitions = 0  # cached partitions of all sessions
        self._sessions: dict[int, FetchSession] = {}

    def __len__(self) -> int:
        return len(self._sessions)

    def begin(
        self, request: FetchRequest, now_ms: int, new_id: Callable[[], int], *, uses_topic_ids: bool
    ) -> FetchSession | None:
        """Returns the session of this request, updated; None for a fetch without one."""
        if request.session_epoch in (FINAL_EPOCH, INITIAL_EPOCH):
            self._end(request.session_id)
            if request.session_epoch == FINAL_EPOCH:
                return None
            return self._create(request, now_ms, new_id, uses_topic_ids)
        session = self._sessions.get(request.session_id)
        if session is None:
            raise FetchSessionNotFound(f"fetch session {request.session_id} is not known; start a new one")
        if request.session_epoch != session.next_epoch:
            raise InvalidFetchSessionEpoch(
                f"fetch session {session.session_id} is at epoch {session.next_epoch}, not {request.session_epoch}"
            )
        if uses_topic_ids != session.uses_topic_ids:
            self._end(session.session_id)
            raise FetchSessionTopicIdError("the session began with the other way to name topics")
        session.next_epoch = 1 if session.next_epoch == EPOCH_MAX else session.next_epoch + 1
        session.last_used_ms = now_ms
        self._sessions[session.session_id] = self._sessions.pop(session.session_id)
        if request.topics or request.forgotten:
            self._update(session, request, now_ms)
        return session

    def _update(self, session: FetchSession, request: FetchRequest, now_ms: int) -> None:
        before = len(session.partitions)
        session.update(request)
        self._partitions += len(session.partitions) - before
        while self._partitions > self._partitions_max:
            if not self._evict(session, now_ms):
                self._end(session.session_id)
                raise FetchSessionNotFound(
                    f"fetch session {session.session_id} has more partitions than are remembered"
                )

    def _create(
        self, request: FetchRequest, now_ms: int, new_id: Callable[[], int], uses_topic_ids: bool
    ) -> FetchSession | None:
        session_id = new_id()
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = new_id()
        session = FetchSession(session_id, uses_topic_ids, now_ms, is_follower=request.replica_id >= 0)
        session.update(request)
        if len(session.partitions) > self._partitions_max:
            return None
        while len(self._sessions) >= self._slots or self._partitions + len(session.partitions) > self._partitions_max:
            if not self._evict(session, now_ms):
                return None
        self._sessions[session_id] = session
        self._partitions += len(session.partitions)
        return session

    def _evict(self, needy: FetchSession, now_ms: int) -> bool:
        """Evicts the least recently used session that may be evicted for this one. Returns False if there is none."""
        others = (one for one in self._sessions.values() if one is not needy)
        oldest = next(others, None)
        if oldest is not None and now_ms - oldest.last_used_ms < IDLE_BEFORE_EVICTION_MS:
            oldest = self._oldest_of_consumers(needy) if needy.is_follower else None
        if oldest is not None:
            self._end(oldest.session_id)
        return oldest is not None

    def _oldest_of_consumers(self, needy: FetchSession) -> FetchSession | None:
        return next((one for one in self._sessions.values() if one is not needy and not one.is_follower), None)

    def _end(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._partitions -= len(session.partitions)
