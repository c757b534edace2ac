"""Which attempt at a micro-batch counts: one decision per query and batch, taken once, for good.

The tasks of a batch leave their transactions open; the driver's commit ends them. Several ends are not one step, so
what makes the batch final is a decision that is written first, in a transaction of its own under the query's id:

    1  take the query's transactional id over     another driver of this query is fenced from here on
    2  read the decision                          is this batch decided already? then only repeat step 5
    3  look at the tasks' transactions            all still open? else fail, and the batch comes again
    4  write the decision: batch, transactions    the batch counts from here on, whoever dies
    5  end the transactions, each safe to repeat
    6  abort what dead attempts have left open

Two drivers of one query can both be anywhere: step 1 lets only the later one write in step 4, and it has read what the
earlier one wrote. The decision is the committed offset of a group, how many batches are decided as the offset and the
last one's transactions as its metadata, so it can be read back by name. See docs/adr/0013-one-decision-per-batch.md.
"""

import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from headrace.client.blocking.cluster import Cluster
from headrace.client.blocking.offsets import Committed, committed_offsets
from headrace.client.blocking.topics import ensure_topic
from headrace.client.blocking.transactional import (
    COMMITTED,
    ONGOING,
    Owner,
    add_group_offsets,
    describe,
    end_transaction,
    init_producer,
    open_transactions,
)
from headrace.client.refusals import Refused
from headrace.model.errors import ErrorCode
from headrace.model.ids import TopicPartition

# Offsets are committed for a topic, and brokers want it to exist. It never holds a record.
TOPIC = "headrace-spark-commits"
PLACE = TopicPartition(TOPIC, 0)
PREFIX = "headrace-spark"
# Brokers take metadata of 4096 bytes (offset.metadata.max.bytes); a longer list is continued in further groups.
METADATA_CHARACTERS_MAX = 4000
# The driver's own transaction lasts milliseconds, and whoever comes after a driver that died in it takes its id over.
DECISION_TIMEOUT_MS = 60_000


class CommitFailed(Exception):
    """The batch was not committed. Nothing of it is visible; the query will write it again."""


class BatchTorn(Exception):
    """A decided batch can no longer be completed. Somebody has to look."""


class Decision(NamedTuple):
    batch_id: int
    run_id: str
    transactions: tuple[Owner, ...]


class Decider:
    """The decisions of one query."""

    def __init__(self, cluster: Cluster, query_id: str, fence: Owner | None = None) -> None:
        """`fence`: an owner who was made when the query was started and does the deciding. Whoever has taken its id
        over since, from wherever, has ended this query's right to decide."""
        self._cluster = cluster
        self._query = f"{PREFIX}-{query_id}"
        self._fence = fence

    def last(self, *, stable: bool) -> Decision | None:
        """The newest decision. Without `stable` one that is being written just now is not waited for."""

        def chunk(number: int) -> Committed | None:
            group = self._group(number)
            return self._cluster.patiently(
                "reading a decision",
                lambda: committed_offsets(self._cluster, group, [PLACE], stable=stable).get(PLACE),
            )

        first = chunk(0)
        if first is None:
            return None
        count_text, _, text = first.metadata.partition(";")
        for number in range(1, int(count_text)):
            more = chunk(number)
            assert more is not None, "all parts of a decision are written in one transaction"
            text += more.metadata
        run_id, rows = json.loads(text)
        return Decision(first.offset - 1, run_id, tuple(Owner(*row) for row in rows))

    def commit(self, proposed: Decision) -> None:
        """Make this attempt the one that counts, unless another one does already."""
        ensure_topic(self._cluster, TOPIC)
        driver = self._driver()
        before = self.last(stable=True)
        if before is not None and before.batch_id >= proposed.batch_id:
            self._abort(set(proposed.transactions) - set(before.transactions))
            if before.batch_id == proposed.batch_id:
                self._complete(driver, before)
            return
        self._check_open(proposed.transactions)
        self._write(driver, proposed)
        self._end(proposed)
        if before is None or before.run_id != proposed.run_id:
            self.sweep(keep=proposed.transactions)

    def abort(self, transactions: Iterable[Owner], batch_id: int) -> None:
        """Of an attempt that failed: what is not part of a decision is undone. Spark calls this also after a commit
        that succeeded and whose driver failed right behind it, so the decision is asked."""
        ensure_topic(self._cluster, TOPIC)
        self._driver()
        before = self.last(stable=True)
        if before is None or before.batch_id < batch_id:
            self._abort(set(transactions))

    def sweep(self, keep: Sequence[Owner]) -> None:
        """Abort what dead tasks of this query have left open: readers of committed data wait for it."""
        kept = {owner.transactional_id for owner in keep}
        for transactional_id in open_transactions(self._cluster, f"{self._query}-"):
            if transactional_id not in kept:
                init_producer(self._cluster, transactional_id, DECISION_TIMEOUT_MS)

    def _driver(self) -> Owner:
        return self._fence or init_producer(self._cluster, self._query, DECISION_TIMEOUT_MS)

    def _group(self, number: int) -> str:
        return f"{self._query}.{number}" if number else self._query

    def _check_open(self, transactions: Sequence[Owner]) -> None:
        lost = [owner for owner in transactions if not self._is(owner, (ONGOING,))]
        if lost:
            self._abort(set(transactions) - set(lost))
            raise CommitFailed(
                f"the transaction {lost[0].transactional_id} of this batch is not open any more: it lasted longer than "
                "transactionTimeoutMs, or a second driver runs this query. The batch will be written again."
            )

    def _is(self, owner: Owner, states: Sequence[str]) -> bool:
        assert owner.transactional_id is not None
        known = describe(self._cluster, owner.transactional_id)
        own = known is not None and (known.producer_id, known.producer_epoch) == (owner.producer_id, owner.epoch)
        return own and known is not None and known.state in states

    def _write(self, driver: Owner, decision: Decision) -> None:
        text = json.dumps([decision.run_id, decision.transactions], separators=(",", ":"))
        pieces = [text[at : at + METADATA_CHARACTERS_MAX] for at in range(0, len(text), METADATA_CHARACTERS_MAX)]
        try:
            for number, piece in enumerate(pieces):
                metadata = piece if number else f"{len(pieces)};{piece}"
                place = {PLACE: Committed(decision.batch_id + 1, metadata)}
                add_group_offsets(self._cluster, driver, self._group(number), place)
            end_transaction(self._cluster, driver, commit=True)
        except Refused as refusal:
            raise CommitFailed(f"another driver of this query has taken over: {refusal}") from refusal

    def _complete(self, driver: Owner, decision: Decision) -> None:
        """A batch that was decided by somebody who may have died behind it.

        Its transactions may have timed out since. If none was committed the decision is taken back, and the batch is
        written again; if some were, that cannot be mended here.
        """
        lost = [owner for owner in decision.transactions if not self._is(owner, (ONGOING, *COMMITTED))]
        if not lost:
            self._end(decision)
            return
        if any(self._is(owner, COMMITTED) for owner in decision.transactions):
            raise BatchTorn(
                f"batch {decision.batch_id} is committed in part: {lost[0].transactional_id} timed out while no driver "
                "was there to end it. Its rows must be written again by hand; then delete the group "
                f"{self._group(0)}. A longer transactionTimeoutMs (and transaction.max.timeout.ms) prevents this."
            )
        self._abort(set(decision.transactions) - set(lost))
        self._write(driver, Decision(decision.batch_id - 1, "", ()))
        raise CommitFailed(f"batch {decision.batch_id} timed out before it was visible; it will be written again")

    def _end(self, decision: Decision) -> None:
        for owner in decision.transactions:
            end_transaction(self._cluster, owner, commit=True)

    def _abort(self, transactions: Iterable[Owner]) -> None:
        for owner in transactions:
            try:
                end_transaction(self._cluster, owner, commit=False)
            except Refused as refusal:
                if refusal.code not in _OVER:
                    raise


# A transaction that cannot be aborted because it has ended, by a timeout, a fence or a commit.
_OVER = (
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
