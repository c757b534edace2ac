"""Fast path for a member that commits the same partitions repeatedly.

As on the produce fast path, every unusual request falls back to the handler before it has a side effect.
"""

from typing import Any
from uuid import UUID

from headrace.broker.api.context import RequestContext
from headrace.broker.api.fast_path import FALLBACK, LongWay
from headrace.broker.handlers.access import allows
from headrace.broker.handlers.group.offset_commit import READ_GROUP, answer_to, checked_topic, new_offset
from headrace.broker.network.connection import Connection
from headrace.broker.network.response_queue import ResponseSlot
from headrace.core.group.coordinator_shard import NewOffset, Outcomes
from headrace.core.group.group_manager import Committer
from headrace.model.errors import HeadraceError
from headrace.model.ids import TopicId
from headrace.protocol.api import ApiKey
from headrace.protocol.frames import Parts, RequestHeader, correlation_id_of, response
from headrace.protocol.messages.offset_commit import OffsetCommitRequest, count_errors, encode_response
from headrace.protocol.offset_commit_fast_path import OffsetCommitTemplate

# Templates learned per connection. A member that commits other partitions each time gains nothing.
SUBJECTS_MAX = 16


class OffsetCommitFastPath:
    """Fast path of one connection; holds a template of the last request that the handler parsed."""

    __slots__ = (
        "_again",
        "_call",
        "_committer",
        "_connection",
        "_places",
        "_subjects",
        "_topic_ids",
        "_topics",
        "durations",
    )

    def __init__(self, connection: Connection, call: RequestContext) -> None:
        self._connection = connection
        self._call = call
        self.durations = call.broker.figures.requests[ApiKey.OFFSET_COMMIT]
        self._subjects = 0
        self._again: OffsetCommitTemplate | None = None
        self._committer = Committer("", None, -1, 0)
        self._places: list[NewOffset] = []
        # Topics as the request named them, and the ids that they were resolved to. Each commit resolves them again,
        # because a topic that was deleted and recreated has another id.
        self._topics: list[str | UUID] = []
        self._topic_ids: list[TopicId] = []

    def learn(self, frame: memoryview, header: RequestHeader, request: OffsetCommitRequest) -> None:
        if self._subjects >= SUBJECTS_MAX:
            return
        self._subjects += 1
        self._again = None
        try:
            resolved = [
                (checked_topic(topic.topic, one.partition, self._call), one)
                for topic in request.topics
                for one in topic.partitions
            ]
        except HeadraceError:
            return
        self._places = [new_offset(known, one, request.retention_ms) for known, one in resolved]
        self._topics = [topic.topic for topic in request.topics for _ in topic.partitions]
        self._topic_ids = [known.topic_id for known, _ in resolved]
        self._committer = Committer(request.member_id, request.instance_id, request.generation, header.version)
        self._again = OffsetCommitTemplate.of(frame, header, request)

    def __call__(self, frame: memoryview) -> Parts | LongWay | None:
        again = self._again
        offsets = again.offsets(frame) if again is not None else None
        if again is None or offsets is None:
            return FALLBACK
        call = self._call
        call.principal = self._connection.principal
        answer = _Answer(again, correlation_id_of(frame), call)
        group_id, committer = again.request.group_id, self._committer
        try:
            if not allows(call, READ_GROUP, group_id):
                return FALLBACK
            wanted = []
            for place, topic, topic_id, offset in zip(
                self._places, self._topics, self._topic_ids, offsets, strict=True
            ):
                partition = place[0]
                present_id = checked_topic(topic, partition[1], call).topic_id
                if present_id is not topic_id and present_id != topic_id:
                    return FALLBACK
                wanted.append(NewOffset(partition, offset, place[2], place[3], place[4], place[5]))
            call.broker.groups.runtime.schedule_batched_write(
                group_id,
                lambda machine, ticket, now: machine.commit(group_id, committer, wanted, ticket, now),
                answer.settle,
            )
        except HeadraceError:
            return FALLBACK
        if answer.parts is None:
            answer.reply = self._connection.reserve_slot()
        return answer.parts


class _Answer:
    """Response to one commit: completed at once, or when the log has committed it."""

    __slots__ = ("_again", "_call", "_correlation_id", "parts", "reply")

    def __init__(self, again: OffsetCommitTemplate, correlation_id: int, call: RequestContext) -> None:
        self._again, self._correlation_id, self._call = again, correlation_id, call
        self.reply: ResponseSlot | None = None
        self.parts: Parts | None = None

    def settle(self, outcome: Any) -> None:
        self.parts = self._parts(outcome)
        if self.reply is not None:
            self.reply.send(self.parts)

    def _parts(self, outcome: Outcomes | HeadraceError) -> Parts:
        if not isinstance(outcome, HeadraceError) and not any(outcome.values()):
            return (self._again.reply(self._correlation_id),)
        version = self._again.version
        answer = answer_to(self._again.request, {}, outcome, self._call)
        body = encode_response(version, answer)
        count_errors(version, answer, self._call.broker.figures.errors[ApiKey.OFFSET_COMMIT])
        return response(ApiKey.OFFSET_COMMIT, version, self._correlation_id, body)


def learn(
    connection: Connection, frame: memoryview, header: RequestHeader, request: OffsetCommitRequest, call: RequestContext
) -> None:
    """Learns the request as the connection's template."""
    shortcut = connection.shortcuts.get(ApiKey.OFFSET_COMMIT)
    if not isinstance(shortcut, OffsetCommitFastPath):
        shortcut = connection.shortcuts[ApiKey.OFFSET_COMMIT] = OffsetCommitFastPath(connection, call)
    shortcut.learn(frame, header, request)
