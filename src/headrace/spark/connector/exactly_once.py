"""Which attempt at a micro-batch counts: one decision per query and batch, taken once, for good.

The tasks of a batch leave their transactions open; the driver's commit ends them. Several ends are not one step, so
what makes the batch final is a decision that is written first, in a transaction of its own under the query's id:

    1  take the query's transactional id over     another driver of this query is fenced from here on
    2  read the decision                          is this batch decided already? then only repeat step 5; is it
                                                  another one under the same number? then refuse it
    3  look at the tasks' transactions            all still open? else fail, and the batch comes again
    4  write the decision: batch, transactions    the batch counts from here on, whoever dies
    5  end the transactions, each safe to repeat      then note that it is done, for who asks in weeks
    6  abort what dead attempts have left open

Two drivers of one query can both be anywhere: step 1 lets only the later one write in step 4, and it has read what the
earlier one wrote. The decision is a record in a compacted topic (commit_records.py), and the committed offset of a
group refers to it: how many batches are decided. The record holds the end offsets of the batch, because a number alone
does not name a batch: a checkpoint that was restored from a backup plans the same numbers with other records. See
docs/adr/0013-one-commit-record-per-micro-batch.md.
"""

import json
import re
from collections.abc import Iterable, Sequence
from hashlib import sha256
from typing import NamedTuple

from headrace.client.core.errors import KafkaApiError
from headrace.client.sync.client import Cluster, create_topic_if_missing
from headrace.client.sync.offsets import Committed, committed_offsets
from headrace.client.sync.transactions import (
    COMMITTED,
    ONGOING,
    ProducerIdentity,
    add_group_offsets,
    describe,
    end_transaction,
    init_producer,
    open_transactions,
)
from headrace.model.errors import ErrorCode, InvalidConfig
from headrace.model.ids import TopicPartition
from headrace.spark.connector.checkpoint import UNKNOWN, CommittedBatch, check_repeated
from headrace.spark.connector.commit_records import append, append_fact, ensure_records, is_reference, newest, referred

# Offsets are committed for a topic, and brokers want it to exist. It never holds a record.
TOPIC = "headrace-spark-commits"
PLACE = TopicPartition(TOPIC, 0)
PREFIX = "headrace-spark"
# What earlier versions wrote: the whole decision as metadata, continued in the groups NAME.1, NAME.2 and so on.
_EARLIER = re.compile(r"(\d+);(\[.*)", re.DOTALL)
# The parts of a task's transactional id behind the query's: the run, the batch's slot, the task and its attempt. None
# has a hyphen, so that the query's id is what stands before the last four whatever it looks like.
_RUN = re.compile(r"[0-9a-f]{8}")
_TASK = re.compile(rf"{PREFIX}-(.+)-[0-9a-f]{{8}}-\d+-\d+-\d+", re.DOTALL)
# The driver's own transaction lasts milliseconds, and whoever comes after a driver that died in it takes its id over.
DECISION_TIMEOUT_MS = 60_000
NO_BATCH = -1


class CommitFailed(Exception):
    """The batch was not committed. Nothing of it is visible; the query will write it again."""


class CheckpointCopied(InvalidConfig):
    """Two queries with copies of one checkpoint, or two writes with one txnAppId, have different targets."""


class PartialCommitError(Exception):
    """A decided batch can no longer be completed. Somebody has to look."""


class Decision(NamedTuple):
    batch_id: int
    run_id: str
    transactions: tuple[ProducerIdentity, ...]
    ends: str = UNKNOWN  # up to which offsets the batch reads, as its checkpoint has it
    before: CommittedBatch = CommittedBatch(NO_BATCH, UNKNOWN)  # what the sink has if this one is taken back
    target: str = ""  # the topic, or the pipeline; "" if it is not known, as when a column names the topics

    @property
    def committed(self) -> CommittedBatch:
        return CommittedBatch(self.batch_id, self.ends)


def task_id(query_id: str, run_id: str, slot: int, task: str) -> str:
    """The transactional id of a task: `task` is its number and that of its attempt."""
    run = run_id[:8] if _RUN.fullmatch(run_id[:8]) else sha256(run_id.encode()).hexdigest()[:8]
    return f"{PREFIX}-{query_id}-{run}-{slot}-{task}"


def query_of(transactional_id: str) -> str | None:
    """The query of a task's transactional id; None of any other."""
    found = _TASK.fullmatch(transactional_id)
    return found[1] if found is not None else None


class ExactlyOnceCommitter:
    """The decisions of one query."""

    def __init__(self, cluster: Cluster, query_id: str, fence: ProducerIdentity | None = None) -> None:
        """`fence`: an owner who was made when the query was started and does the deciding. Whoever has taken its id
        over since, from wherever, has ended this query's right to decide."""
        self._cluster = cluster
        self._id = query_id
        self._query = f"{PREFIX}-{query_id}"
        self._key, self._done_key = f"query {query_id}", f"done {query_id}"
        self._fence = fence

    def last(self, *, stable: bool) -> Decision | None:
        """The newest decision. Without `stable` one that is being written just now is not waited for."""
        committed = self._committed(self._query, stable=stable)
        if committed is not None and is_reference(committed.metadata):
            return _decision(referred(self._cluster, self._key, committed))
        earlier = _EARLIER.fullmatch(committed.metadata) if committed is not None else None
        if committed is not None and earlier is not None:
            run_id, rows = json.loads(earlier[2] + self._continued(committed, int(earlier[1])))
            return Decision(committed.offset - 1, run_id, tuple(ProducerIdentity(*row) for row in rows))
        # The group has expired, or another query's decision of an earlier version was continued there.
        record = newest(self._cluster, self._key) if stable else None
        return _decision(record) if record is not None else None

    def last_number(self) -> int:
        """Of the newest decision, as far as its group knows: enough for a task, which only saves itself the writing."""
        committed = self._committed(self._query, stable=False)
        if committed is None or not (is_reference(committed.metadata) or _EARLIER.fullmatch(committed.metadata)):
            return NO_BATCH
        return committed.offset - 1

    def _committed(self, group: str, *, stable: bool) -> Committed | None:
        return self._cluster.patiently(
            "reading a decision",
            lambda: committed_offsets(self._cluster, group, [PLACE], stable=stable).get(PLACE),
        )

    def _continued(self, head: Committed, count: int) -> str:
        parts = [self._committed(f"{self._query}.{number}", stable=True) for number in range(1, count)]
        if any(part is None or part.offset != head.offset for part in parts):
            raise PartialCommitError(
                f"the decision over batch {head.offset - 1} was written by an earlier version to the groups "
                f"{self._query} to {self._query}.{count - 1}, and not all of them hold it any more. Look whether the "
                f"batch is complete; then delete the group {self._query}"
            )
        return "".join(part.metadata for part in parts if part is not None)

    def commit(self, proposed: Decision) -> None:
        """Make this attempt the one that counts, unless another one does already."""
        create_topic_if_missing(self._cluster, TOPIC)
        ensure_records(self._cluster)
        driver = self._driver()
        before = self.last(stable=True)
        if before is not None and before.batch_id >= proposed.batch_id:
            self._abort(set(proposed.transactions) - set(before.transactions))
            # First: a batch that was decided counts, and would time out while somebody finds the right checkpoint.
            self._complete(driver, before)
            _check_target(before, proposed)
            check_repeated("the sink", before.committed, proposed.batch_id, proposed.ends)
            return
        self._check_open(proposed.transactions)
        self._write(driver, proposed if before is None else proposed._replace(before=before.committed))
        self._end(proposed)
        if before is None or before.run_id != proposed.run_id:
            self.sweep(keep=proposed.transactions)

    def finish(self) -> None:
        """Ends the transactions of the last decision, whose driver may have died behind it. CommitFailed if they have
        timed out; the decision is taken back then."""
        create_topic_if_missing(self._cluster, TOPIC)
        ensure_records(self._cluster)
        driver = self._driver()
        last = self.last(stable=True)
        if last is not None:
            self._complete(driver, last)

    def abort(self, transactions: Iterable[ProducerIdentity], batch_id: int) -> None:
        """Of an attempt that failed: what is not part of a decision is undone. Spark calls this also after a commit
        that succeeded and whose driver failed right behind it, so the decision is asked."""
        create_topic_if_missing(self._cluster, TOPIC)
        self._driver()
        before = self.last(stable=True)
        if before is None or before.batch_id < batch_id:
            self._abort(set(transactions))

    def sweep(self, keep: Sequence[ProducerIdentity]) -> None:
        """Abort what dead tasks of this query have left open: readers of committed data wait for it."""
        kept = {owner.transactional_id for owner in keep}
        for transactional_id in open_transactions(self._cluster, f"{self._query}-"):
            if query_of(transactional_id) == self._id and transactional_id not in kept:
                init_producer(self._cluster, transactional_id, DECISION_TIMEOUT_MS)

    def _driver(self) -> ProducerIdentity:
        return self._fence or init_producer(self._cluster, self._query, DECISION_TIMEOUT_MS)

    def _check_open(self, transactions: Sequence[ProducerIdentity]) -> None:
        lost = [owner for owner in transactions if not self._is(owner, (ONGOING,))]
        if lost:
            self._abort(set(transactions) - set(lost))
            raise CommitFailed(
                f"the transaction {lost[0].transactional_id} of this batch is not open any more: it lasted longer than "
                "transactionTimeoutMs, or a second driver runs this query. The batch will be written again."
            )

    def _is(self, owner: ProducerIdentity, states: Sequence[str]) -> bool:
        assert owner.transactional_id is not None
        known = describe(self._cluster, owner.transactional_id)
        own = known is not None and (known.producer_id, known.producer_epoch) == (owner.producer_id, owner.epoch)
        return own and known is not None and known.state in states

    def _write(self, driver: ProducerIdentity, decision: Decision) -> None:
        text = json.dumps(decision)
        try:
            reference = append(self._cluster, driver, self._key, text)
            add_group_offsets(self._cluster, driver, self._query, {PLACE: Committed(decision.batch_id + 1, reference)})
            end_transaction(self._cluster, driver, commit=True)
        except KafkaApiError as refusal:
            raise CommitFailed(f"another driver of this query has taken over: {refusal}") from refusal

    def _complete(self, driver: ProducerIdentity, decision: Decision) -> None:
        """A batch that was decided by somebody who may have died behind it.

        Its transactions may have timed out since. If none was committed the decision is taken back, and the batch is
        written again; if some were, that cannot be mended here.
        """
        lost = [owner for owner in decision.transactions if not self._is(owner, (ONGOING, *COMMITTED))]
        if not lost:
            self._end(decision)
            return
        if newest(self._cluster, self._done_key) == str(decision.batch_id):
            return  # so long ago that brokers have forgotten the tasks' transactional ids
        if any(self._is(owner, COMMITTED) for owner in decision.transactions):
            raise PartialCommitError(
                f"batch {decision.batch_id} is committed in part: {lost[0].transactional_id} timed out while no driver "
                "was there to end it. Its rows must be written again by hand; then delete the group "
                f"{self._query}. A longer transactionTimeoutMs (and transaction.max.timeout.ms) prevents this."
            )
        self._abort(set(decision.transactions) - set(lost))
        self._write(driver, Decision(decision.before.number, "", (), decision.before.ends, target=decision.target))
        raise CommitFailed(f"batch {decision.batch_id} timed out before it was visible; it will be written again")

    def _end(self, decision: Decision) -> None:
        for owner in decision.transactions:
            end_transaction(self._cluster, owner, commit=True)
        append_fact(self._cluster, self._done_key, str(decision.batch_id))

    def _abort(self, transactions: Iterable[ProducerIdentity]) -> None:
        for owner in transactions:
            try:
                end_transaction(self._cluster, owner, commit=False)
            except KafkaApiError as refusal:
                if refusal.code not in _OVER:
                    raise


def _decision(record: str) -> Decision:
    number, run_id, rows, ends, *rest = json.loads(record)
    decision = Decision(number, run_id, tuple(ProducerIdentity(*row) for row in rows), ends)
    if not rest:  # of an earlier version
        return decision
    before, target = rest
    return decision._replace(before=CommittedBatch(*before), target=target)


def _check_target(committed: Decision, proposed: Decision) -> None:
    """CheckpointCopied if a batch would be left out that another target has."""
    if committed.target and proposed.target and committed.target != proposed.target:
        raise CheckpointCopied(
            f"batch {proposed.batch_id} of this query is in {committed.target}, and this one writes to "
            f"{proposed.target}. A copy of a checkpoint has another target, a foreachBatch writes to two topics "
            "with one txnAppId, or the target was changed while the batch was unfinished. Nothing was written. Use a "
            "checkpoint or a txnAppId for each target, or the old target until the batch is done"
        )


# A transaction that cannot be aborted because it has ended, by a timeout, a fence or a commit.
_OVER = (
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
