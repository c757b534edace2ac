"""Writes DataFrames: tasks write, the driver commits. At-least-once, or exactly-once with transactions.

Spark creates a new writer in a new process for every commit, so everything that a commit needs is in the messages of
the tasks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.client.reader.arrow_reader import cluster_for
from headrace.client.sync.transactions import ProducerIdentity, end_transaction
from headrace.spark.connector.checkpoint import batch_ends
from headrace.spark.connector.exactly_once import PREFIX, Decision, ExactlyOnceCommitter, task_id
from headrace.spark.connector.sink_rows import check_writable
from headrace.spark.connector.task_writer import write_in_transaction, write_rows
from headrace.spark.connector.write_options import WriteOptions

# Later batches reuse transactional ids, because brokers keep each for a week. With this many batches between two uses,
# a task attempt that was considered dead and resumes late meets only its own transaction.
BATCHES_PER_ID = 16

_QUERY_ID, _BATCH_ID, _RUN_ID = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"


@dataclass
class TaskResult(WriterCommitMessage):
    """What a task has written, with its open transaction, if any."""

    rows: int
    owner: ProducerIdentity | None = None
    query_id: str = ""
    run_id: str = ""
    skipped: bool = False  # the batch is committed already


class HeadraceStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_writable(schema, options.topic)
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        if not self._options.exactly_once:
            return TaskResult(write_rows(self._options, iterator))
        context = _task()
        query_id, batch_id, run_id = (_property(context, name) for name in (_QUERY_ID, _BATCH_ID, _RUN_ID))
        return write_once(self._options, iterator, query_id, run_id, int(batch_id))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if self._options.exactly_once:
            decide(self._options, messages, batchId)

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        if self._options.exactly_once:
            _undo(self._options, messages, batchId)


class HeadraceNumberedWriter(DataSourceArrowWriter):
    """Writer of a batch job with a batch number, as in a `foreachBatch`, which repeats a batch after a failure."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_writable(schema, options.topic)
        assert options.numbered is not None, "the batch has a number"
        self._options = options
        self._owner, self._number = options.numbered
        self._job = uuid4().hex

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        # The query's run if Spark sets it: runs reuse transactional ids, single jobs never do.
        run_id = _task().getLocalProperty(_RUN_ID) or self._job
        return write_once(self._options, iterator, self._owner, str(run_id), self._number)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        decide(self._options, messages, self._number)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _undo(self._options, messages, self._number)


class HeadraceBatchWriter(DataSourceArrowWriter):
    """Writer of a batch job. Spark does not repeat batch jobs, so their transactions need no commit record and are
    ended one by one.
    """

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_writable(schema, options.topic)
        self._options = options
        self._job = uuid4().hex

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        if not self._options.exactly_once:
            return TaskResult(write_rows(self._options, iterator))
        owner, rows = write_in_transaction(self._options, iterator, f"{PREFIX}-{self._job}-{_attempt_of(_task())}")
        return TaskResult(rows, owner)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._end(messages, commit=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._end(messages, commit=False)

    def _end(self, messages: Sequence[WriterCommitMessage | None], *, commit: bool) -> None:
        for one in _done(messages):
            if one.owner is not None:
                end_transaction(cluster_for(self._options.client), one.owner, commit=commit)


def write_once(options: WriteOptions, rows: Iterator[Any], query_id: str, run_id: str, batch_id: int) -> TaskResult:
    """Writes a task's rows in a transaction of its own, unless the batch is committed already."""
    if ExactlyOnceCommitter(cluster_for(options.client), query_id).last_number() >= batch_id:
        for _ in rows:  # a repeated batch writes nothing
            pass
        return TaskResult(0, None, query_id, run_id, skipped=True)
    name = task_id(query_id, run_id, batch_id % BATCHES_PER_ID, _attempt_of(_task()))
    owner, count = write_in_transaction(options, rows, name)
    return TaskResult(count, owner, query_id, run_id)


def decide(options: WriteOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
    done = [one for one in _done(messages) if one.owner is not None or one.skipped]
    if done:  # otherwise no task wrote anything
        transactions = tuple(sorted(one.owner for one in done if one.owner is not None))
        decider = ExactlyOnceCommitter(cluster_for(options.client), done[0].query_id, options.fence)
        ends = batch_ends(options.checkpoint, batch_id)
        fence = options.fence.transactional_id if options.fence is not None else None
        target = fence or options.topic or ""
        decider.commit(Decision(batch_id, done[0].run_id, transactions, ends, target=target))


def _undo(options: WriteOptions, messages: Sequence[WriterCommitMessage | None], batch_id: int) -> None:
    done = [one for one in _done(messages) if one.owner is not None]
    if done:
        decider = ExactlyOnceCommitter(cluster_for(options.client), done[0].query_id, options.fence)
        decider.abort([one.owner for one in done if one.owner is not None], batch_id)


def _done(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    """Returns the results of the tasks that succeeded. Failed tasks have no message."""
    return [one for one in messages if isinstance(one, TaskResult)]


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written by Spark's tasks"
    return context


def _property(context: TaskContext, name: str) -> str:
    value = context.getLocalProperty(name)
    if value is None:
        raise RuntimeError(
            f"Spark does not provide {name}, which exactly-once delivery requires; is this a streaming query?"
        )
    return str(value)


def _attempt_of(context: TaskContext) -> str:
    """Identifies a task attempt. Other attempts at the same rows have other ids, so that no attempt can end another's
    transaction.
    """
    return f"{context.partitionId()}-{context.attemptNumber()}"
