"""Dead letters of one batch of a table, written exactly once beside it.

The sink's own steps, called from a `foreachBatch`: tasks write in transactions that stay open, this process decides.
As a write of the format headrace it would be the same, but Spark starts four Python processes to plan one, every time,
and that takes longer than a small batch does.
"""

import pickle
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from headrace.spark.sink_options import WriteOptions
from headrace.spark.writers import TaskDone, decide, write_once

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def write_letters(letters: "DataFrame", options: WriteOptions, query_id: str, run_id: str, number: int) -> None:
    """Both are there afterwards: the letters, and the decision that this batch of the query has them."""

    def write(batches: Iterator[Any]) -> Iterator[Any]:
        import pyarrow as pa

        done = write_once(options, batches, query_id, run_id, number)
        yield pa.RecordBatch.from_pydict({"done": [pickle.dumps(done)]})

    rows = letters.mapInArrow(write, "done binary").collect()
    done: list[TaskDone] = [pickle.loads(row.done) for row in rows]
    decide(options, done, number)
