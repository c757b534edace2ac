"""Writing DataFrames: tasks write, the driver commits. At least once, or exactly once with transactions.

Spark builds the writer anew in a process of its own for every commit, so whatever a commit needs comes with the
messages of the tasks.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from headrace.client.blocking.transactional import Owner, end_transaction
from headrace.spark.deciding import PREFIX, Decider, Decision
from headrace.spark.reading import cluster_for
from headrace.spark.sink_options import WriteOptions
from headrace.spark.sink_rows import check_writable
from headrace.spark.task_writer import write_in_transaction, write_rows

# Transactional ids are used again by later batches, since brokers remember each for a week. So many batches lie between
# two uses that a task attempt which was taken for dead and wakes up late meets no transaction but its own.
BATCHES_PER_ID = 16

_QUERY_ID, _BATCH_ID, _RUN_ID = "sql.streaming.queryId", "streaming.sql.batchId", "spark.jobGroup.id"


@dataclass
class TaskDone(WriterCommitMessage):
    """What a task has written: its open transaction, if it has one."""

    rows: int
    owner: Owner | None = None
    query_id: str = ""
    run_id: str = ""
    skipped: bool = False  # because the batch counts already


class HeadraceStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_writable(schema, options.topic)
        self._options = options

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        if not self._options.exactly_once:
            return TaskDone(write_rows(self._options, iterator))
        context = _task()
        query_id, batch_id, run_id = (_property(context, name) for name in (_QUERY_ID, _BATCH_ID, _RUN_ID))
        decided = Decider(cluster_for(self._options.client), query_id).last(stable=False)
        if decided is not None and decided.batch_id >= int(batch_id):
            for _ in iterator:  # the batch counts already; a repetition has nothing to write
                pass
            return TaskDone(0, None, query_id, run_id, skipped=True)
        name = f"{PREFIX}-{query_id}-{run_id[:8]}-{int(batch_id) % BATCHES_PER_ID}-{_attempt_of(context)}"
        owner, rows = write_in_transaction(self._options, iterator, name)
        return TaskDone(rows, owner, query_id, run_id)

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        done = [one for one in _done(messages) if one.owner is not None or one.skipped]
        if not self._options.exactly_once or not done:
            return  # nothing was written
        transactions = tuple(sorted(one.owner for one in done if one.owner is not None))
        decider = Decider(cluster_for(self._options.client), done[0].query_id)
        decider.commit(Decision(batchId, done[0].run_id, transactions))

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        done = [one for one in _done(messages) if one.owner is not None]
        if self._options.exactly_once and done:
            decider = Decider(cluster_for(self._options.client), done[0].query_id)
            decider.abort([one.owner for one in done if one.owner is not None], batchId)


class HeadraceBatchWriter(DataSourceArrowWriter):
    """A batch job is not repeated by Spark, so its transactions need no decision: they are ended one by one."""

    def __init__(self, options: WriteOptions, schema: StructType) -> None:
        check_writable(schema, options.topic)
        self._options = options
        self._job = uuid4().hex

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        if not self._options.exactly_once:
            return TaskDone(write_rows(self._options, iterator))
        owner, rows = write_in_transaction(self._options, iterator, f"{PREFIX}-{self._job}-{_attempt_of(_task())}")
        return TaskDone(rows, owner)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._end(messages, commit=True)

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        self._end(messages, commit=False)

    def _end(self, messages: Sequence[WriterCommitMessage | None], *, commit: bool) -> None:
        for one in _done(messages):
            if one.owner is not None:
                end_transaction(cluster_for(self._options.client), one.owner, commit=commit)


def _done(messages: Sequence[WriterCommitMessage | None]) -> list[TaskDone]:
    """Tasks that failed have left no message."""
    return [one for one in messages if isinstance(one, TaskDone)]


def _task() -> TaskContext:
    context = TaskContext.get()
    assert context is not None, "rows are written by Spark's tasks"
    return context


def _property(context: TaskContext, name: str) -> str:
    value = context.getLocalProperty(name)
    if value is None:
        raise RuntimeError(f"Spark does not say {name}, which exactly-once needs; is this a streaming query?")
    return str(value)


def _attempt_of(context: TaskContext) -> str:
    """Told apart from other attempts at the same rows, so that none of them can end another's transaction."""
    return f"{context.partitionId()}-{context.attemptNumber()}"
