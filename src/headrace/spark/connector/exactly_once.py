"""Exactly-once commits of micro-batches: two-phase commit with one commit record per query and batch.

The tasks of a batch leave their transactions open; the driver commits them. Ending several transactions is not
atomic, so the batch becomes final with a commit record, which is written first, in a transaction of the query's own
id:

    1  take over the query's transactional id     fences other drivers of this query
    2  read the commit record                     this batch: repeat step 5 only;
                                                  another batch of the same number: reject it
    3  check the tasks' transactions              if one is not open, fail; Spark repeats the batch
    4  write the commit record                    batch and transactions; the batch is final from here on
    5  commit the transactions                    idempotent; then write a "done" record for later drivers
    6  abort open transactions of dead attempts

Two drivers of one query can both be at any step. After step 1 only the later one can write in step 4, and it has read
what the earlier one wrote. The commit record is in a compacted topic (commit_records.py), and the committed offset of
a group refers to it; the offset is the number of committed batches. The record contains the end offsets of the batch,
because a number does not identify a batch: with a checkpoint that was restored from a backup Spark plans the same
numbers with other records. See docs/adr/0013-one-commit-record-per-micro-batch.md.
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

# Topic of the committed offsets. Brokers require that it exists; it never has a record.
TOPIC = "headrace-spark-commits"
PLACE = TopicPartition(TOPIC, 0)
PREFIX = "headrace-spark"
# Format of earlier versions: the whole commit record as metadata, continued in the groups NAME.1, NAME.2 and so on.
_EARLIER = re.compile(r"(\d+);(\[.*)", re.DOTALL)
# Components of a task's transactional id after the query's id: run, slot of the batch, task, attempt. None contains a
# hyphen, so the query's id is everything before the last four, whatever it contains.
_RUN = re.compile(r"[0-9a-f]{8}")
_TASK = re.compile(rf"{PREFIX}-(.+)-[0-9a-f]{{8}}-\d+-\d+-\d+", re.DOTALL)
# The driver's own transaction lasts milliseconds. If the driver dies in it, its successor takes over the id.
DECISION_TIMEOUT_MS = 60_000
NO_BATCH = -1


class CommitFailed(Exception):
    """The batch was not committed. Nothing of it is visible; the query will write it again."""


class CheckpointCopied(InvalidConfig):
    """Two queries with copies of one checkpoint, or two writes with one txnAppId, have different targets."""


class PartialCommitError(Exception):
    """A committed batch can no longer be completed. Requires an operator."""


class Decision(NamedTuple):
    batch_id: int
    run_id: str
    transactions: tuple[ProducerIdentity, ...]
    ends: str = UNKNOWN  # end offsets of the batch, as in its checkpoint
    before: CommittedBatch = CommittedBatch(NO_BATCH, UNKNOWN)  # the batch that is restored if this one is taken back
    target: str = ""  # topic or pipeline; "" if unknown, as when a column names the topics

    @property
    def committed(self) -> CommittedBatch:
        return CommittedBatch(self.batch_id, self.ends)


def task_id(query_id: str, run_id: str, slot: int, task: str) -> str:
    """Returns the transactional id of a task. `task` contains its number and that of its attempt."""
    run = run_id[:8] if _RUN.fullmatch(run_id[:8]) else sha256(run_id.encode()).hexdigest()[:8]
    return f"{PREFIX}-{query_id}-{run}-{slot}-{task}"


def query_of(transactional_id: str) -> str | None:
    """Returns the query of a task's transactional id; None for any other id."""
    found = _TASK.fullmatch(transactional_id)
    return found[1] if found is not None else None


class ExactlyOnceCommitter:
    """Writes and completes the commit records of one query."""

    def __init__(self, cluster: Cluster, query_id: str, fence: ProducerIdentity | None = None) -> None:
        """`fence` is a producer identity from the start of the query, used instead of the query's own. A process that
        has taken over its transactional id since then has fenced this committer.
        """
        self._cluster = cluster
        self._id = query_id
        self._query = f"{PREFIX}-{query_id}"
        self._key, self._done_key = f"query {query_id}", f"done {query_id}"
        self._fence = fence

    def last(self, *, stable: bool) -> Decision | None:
        """Returns the newest commit record. Without `stable` does not wait for one that is being written."""
        committed = self._committed(self._query, stable=stable)
        if committed is not None and is_reference(committed.metadata):
            return _decision(referred(self._cluster, self._key, committed))
        earlier = _EARLIER.fullmatch(committed.metadata) if committed is not None else None
        if committed is not None and earlier is not None:
            run_id, rows = json.loads(earlier[2] + self._continued(committed, int(earlier[1])))
            return Decision(committed.offset - 1, run_id, tuple(ProducerIdentity(*row) for row in rows))
        # The group has expired, or it contains a continuation of another query's commit record of an earlier version.
        record = newest(self._cluster, self._key) if stable else None
        return _decision(record) if record is not None else None

    def last_number(self) -> int:
        """Returns the number of the last committed batch according to the group, without waiting. Sufficient for a
        task, which only uses it to skip writing.
        """
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
                f"an earlier version wrote the commit record of batch {head.offset - 1} to the groups {self._query} to "
                f"{self._query}.{count - 1}, and not all of them still have it. Check whether the batch is complete; "
                f"then delete the group {self._query}"
            )
        return "".join(part.metadata for part in parts if part is not None)

    def commit(self, proposed: Decision) -> None:
        """Commits this attempt at the batch, unless another attempt is committed already."""
        create_topic_if_missing(self._cluster, TOPIC)
        ensure_records(self._cluster)
        driver = self._driver()
        before = self.last(stable=True)
        if before is not None and before.batch_id >= proposed.batch_id:
            self._abort(set(proposed.transactions) - set(before.transactions))
            # Completed before the checks: a committed batch is final, and its transactions would time out while an
            # operator looks for the right checkpoint.
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
        """Commits the transactions of the last commit record, whose driver may have died after writing it. Raises
        CommitFailed if they have timed out; the commit record is then taken back.
        """
        create_topic_if_missing(self._cluster, TOPIC)
        ensure_records(self._cluster)
        driver = self._driver()
        last = self.last(stable=True)
        if last is not None:
            self._complete(driver, last)

    def abort(self, transactions: Iterable[ProducerIdentity], batch_id: int) -> None:
        """Aborts the transactions of a failed attempt unless the batch is committed. Spark also calls this after a
        successful commit whose driver failed right afterwards, so the commit record is read first.
        """
        create_topic_if_missing(self._cluster, TOPIC)
        self._driver()
        before = self.last(stable=True)
        if before is None or before.batch_id < batch_id:
            self._abort(set(transactions))

    def sweep(self, keep: Sequence[ProducerIdentity]) -> None:
        """Aborts open transactions of dead tasks of this query, which block `read_committed` consumers."""
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
        """Completes a committed batch whose driver may have died.

        Its transactions may have timed out since. If none was committed, the commit record is taken back and the
        batch is written again. If some were, raises PartialCommitError: that cannot be repaired here.
        """
        lost = [owner for owner in decision.transactions if not self._is(owner, (ONGOING, *COMMITTED))]
        if not lost:
            self._end(decision)
            return
        if newest(self._cluster, self._done_key) == str(decision.batch_id):
            return  # completed so long ago that brokers have expired the tasks' transactional ids
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
    if not rest:  # written by an earlier version
        return decision
    before, target = rest
    return decision._replace(before=CommittedBatch(*before), target=target)


def _check_target(committed: Decision, proposed: Decision) -> None:
    """Raises CheckpointCopied if a batch would be skipped because another target has committed it."""
    if committed.target and proposed.target and committed.target != proposed.target:
        raise CheckpointCopied(
            f"batch {proposed.batch_id} of this query is in {committed.target}, and this one writes to "
            f"{proposed.target}. A copy of a checkpoint has another target, a foreachBatch writes to two topics "
            "with one txnAppId, or the target was changed while the batch was unfinished. Nothing was written. Use a "
            "checkpoint or a txnAppId for each target, or the old target until the batch is done"
        )


# Errors of aborting a transaction that has already ended, by timeout, fencing or commit.
_OVER = (
    ErrorCode.INVALID_TXN_STATE,
    ErrorCode.INVALID_PRODUCER_EPOCH,
    ErrorCode.PRODUCER_FENCED,
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
)
