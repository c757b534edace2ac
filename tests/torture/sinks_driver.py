"""Pipelines into every kind of sink, in one process with one JVM, to be killed.

python -m tests.torture.sinks_driver BOOTSTRAP DIRECTORY

A process for each, as `headrace pipeline start` has it, would be a JVM for each. What a supervisor does is done here:
a pipeline that fails, as while the broker is away, is started again.
"""

import logging
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = ("topic", "iceberg", "parquet")  # test_pipelines.py has Delta
PAUSE_S = 1.0
FILE = """\
pipeline: to-{kind}
sources:
  orders:
    topic: orders
    format: json
    schema: id bigint, customer string, amount double
    reject:
      the amount is negative: amount < 0
    options: {{maxOffsetsPerTrigger: "500"}}
sql: select id, upper(customer) as customer, amount * 2 as twice from orders
sink:
  {kind}: {target}
dead_letters: dead-{kind}
trigger: 100 milliseconds
"""


def target_of(kind: str, folder: Path) -> str:
    return "rows" if kind == "topic" else str(folder / kind)


def run_for_ever(spark: "SparkSession", bootstrap: str, folder: Path, kind: str) -> None:
    from headrace.pipeline.parser import parse_pipeline
    from headrace.pipeline.state import PipelineState
    from headrace.spark.pipeline.runner import Running
    from headrace.spark.pipeline.sinks import RunContext

    pipeline = parse_pipeline(FILE.format(kind=kind, target=target_of(kind, folder)))
    state = PipelineState(pipeline.name, folder / "state")
    while True:
        try:
            spark.createDataFrame([], "id int")  # makes this the session of the thread, where sinks look formats up
            Running(pipeline, state, RunContext(bootstrap, str(state.checkpoint)), lambda: None).run(spark)
        except Exception:
            logging.exception("%s is started again", pipeline.name)
            for query in spark.streams.active:
                query.stop()
        time.sleep(PAUSE_S)


def main(bootstrap: str, folder: str) -> None:
    from headrace.spark.connector.datasource import HeadraceDataSource
    from headrace.spark.session import open_session

    logging.basicConfig(level=logging.INFO)
    spark = open_session("sinks to be killed", master="local[2]", settings={"spark.log.level": "ERROR"})
    sessions = [spark.newSession() for _ in KINDS]  # views of the same name are of one session
    for one in sessions:
        one.dataSource.register(HeadraceDataSource)  # by itself Spark finds it for its first session alone
    threads = [
        threading.Thread(target=run_for_ever, args=(session, bootstrap, Path(folder), kind))
        for session, kind in zip(sessions, KINDS, strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
