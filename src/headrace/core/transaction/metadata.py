"""State of a transactional id: one immutable value, replaced at every transition.

    EMPTY ──────────► ONGOING ──► PREPARE_COMMIT ──► COMPLETE_COMMIT ─┐
      ▲                 ▲  │                                          │
      │                 │  └────► PREPARE_ABORT ───► COMPLETE_ABORT ──┤
      │                 └─────────────────────────────────────────────┤
      └──────── InitProducerId by a new producer ─────────────────────┘

Once PREPARE is in the log the outcome is final; what remains is to write markers to every partition. Numbers and
names are Kafka's, since they appear in the log and in DescribeTransactions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import NamedTuple

from headrace.model.ids import NO_EPOCH, NO_PRODUCER_ID, TopicPartition

NO_TIME = -1
EPOCH_MAX = 2**15 - 1
# The highest epoch that a client gets. The one above is reserved, so that its last owner can be fenced.
CLIENT_EPOCH_MAX = EPOCH_MAX - 1
# Transaction protocol v2: from this version on, the epoch is bumped at the end of every transaction (KIP-890).
EPOCH_BUMP_FROM = 2


class TransactionState(IntEnum):
    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """Returns the state's name in Kafka's tools."""
        return "".join(word.capitalize() for word in self.name.split("_"))


_S = TransactionState
PREPARED = frozenset({_S.PREPARE_COMMIT, _S.PREPARE_ABORT})
AT_REST = frozenset({_S.EMPTY, _S.COMPLETE_COMMIT, _S.COMPLETE_ABORT})

# DEAD and PREPARE_EPOCH_FENCE exist only in Kafka's memory. headrace removes, and fences, in one step.
NEXT: Mapping[TransactionState, frozenset[TransactionState]] = {
    _S.EMPTY: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT}),
    _S.ONGOING: frozenset({_S.ONGOING, _S.PREPARE_COMMIT, _S.PREPARE_ABORT}),
    _S.PREPARE_COMMIT: frozenset({_S.COMPLETE_COMMIT}),
    _S.PREPARE_ABORT: frozenset({_S.COMPLETE_ABORT}),
    _S.COMPLETE_COMMIT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT}),
    _S.COMPLETE_ABORT: frozenset({_S.EMPTY, _S.ONGOING, _S.PREPARE_ABORT}),
    _S.DEAD: frozenset(),
    _S.PREPARE_EPOCH_FENCE: frozenset(),
}


class ProducerIdentity(NamedTuple):
    """Producer id and epoch of a request."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """State of a transactional id: its current producer, and its open transaction, if any."""

    transactional_id: str
    producer_id: int
    epoch: int
    last_epoch: int = NO_EPOCH  # the same producer's previous epoch: distinguishes its retries from requests of others
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID  # replaces `producer_id` on completion, when its epochs are exhausted
    timeout_ms: int
    state: TransactionState
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = NO_TIME
    updated_ms: int
    client_version: int = 0  # the `transaction.version` of the client's last write

    @property
    def owner(self) -> ProducerIdentity:
        return ProducerIdentity(self.producer_id, self.epoch)

    @property
    def epochs_are_used_up(self) -> bool:
        return self.epoch >= CLIENT_EPOCH_MAX

    @property
    def commits(self) -> bool:
        return self.state in (_S.PREPARE_COMMIT, _S.COMPLETE_COMMIT)

    @property
    def uses_tv2(self) -> bool:
        """Returns whether the markers of a prepared transaction have a higher epoch than its records."""
        return self.client_version >= EPOCH_BUMP_FROM

    @property
    def deadline_ms(self) -> int:
        return self.started_ms + self.timeout_ms

    # Transitions. Each returns the next value to write to the log.

    def with_partitions(
        self, partitions: frozenset[TopicPartition], client_version: int, now_ms: int
    ) -> "TransactionMetadata":
        started_ms = self.started_ms if self.state is _S.ONGOING else now_ms
        return replace(
            self,
            state=_S.ONGOING,
            partitions=self.partitions | partitions,
            started_ms=started_ms,
            updated_ms=now_ms,
            client_version=client_version,
        )

    def prepared(
        self, *, commit: bool, client_version: int, next_producer_id: int = NO_PRODUCER_ID, now_ms: int
    ) -> "TransactionMetadata":
        bumps = client_version >= EPOCH_BUMP_FROM
        return replace(
            self,
            state=_S.PREPARE_COMMIT if commit else _S.PREPARE_ABORT,
            epoch=self.epoch + 1 if bumps else self.epoch,
            last_epoch=self.epoch if bumps else self.last_epoch,
            next_producer_id=next_producer_id,
            started_ms=self.started_ms if self.state is _S.ONGOING else now_ms,
            updated_ms=now_ms,
            client_version=client_version,
        )

    def fenced(self, *, last_epoch: int = NO_EPOCH, now_ms: int) -> "TransactionMetadata":
        """Returns the transaction in PREPARE_ABORT. Its markers' epoch was returned to no producer."""
        assert self.epoch < EPOCH_MAX, "clients are never given the last epoch"
        return replace(self, state=_S.PREPARE_ABORT, epoch=self.epoch + 1, last_epoch=last_epoch, updated_ms=now_ms)

    def completed(self, now_ms: int) -> "TransactionMetadata":
        done = replace(
            self,
            state=_S.COMPLETE_COMMIT if self.commits else _S.COMPLETE_ABORT,
            partitions=frozenset(),
            updated_ms=now_ms,
        )
        if self.next_producer_id == NO_PRODUCER_ID:
            return done
        return replace(
            done,
            producer_id=self.next_producer_id,
            epoch=0,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
        )

    def taken_over(self, *, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int) -> "TransactionMetadata":
        return replace(
            self,
            state=_S.EMPTY,
            epoch=epoch,
            last_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            started_ms=NO_TIME,
            updated_ms=now_ms,
        )

    def rotated(self, fresh_id: int, *, last_epoch: int, timeout_ms: int, now_ms: int) -> "TransactionMetadata":
        """Returns the same transactional id with a new producer id, because the epochs of the old one are exhausted."""
        taken = self.taken_over(epoch=0, last_epoch=last_epoch, timeout_ms=timeout_ms, now_ms=now_ms)
        return replace(taken, producer_id=fresh_id, previous_producer_id=self.producer_id)
