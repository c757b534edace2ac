"""The process that runs one pipeline: opens Spark, starts the query, tells how it fares, ends when asked.

Exit codes: 0 it is done or was asked to stop, 2 the file makes no sense (do not try again), 1 anything else.
"""

import argparse
import json
import logging
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headrace.model.errors import HeadraceError, InvalidConfig
from headrace.spark.pipeline.plan import open_table, plan
from headrace.spark.pipeline.progress import Progress, progress_of
from headrace.spark.pipeline.reading import read_any
from headrace.spark.pipeline.sinks import start_queries
from headrace.spark.pipeline.spec import Pipeline, Source
from headrace.spark.pipeline.state import PipelineState
from headrace.spark.session import open_session

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

log = logging.getLogger(__name__)

PROGRESS_TOPIC = "__headrace_pipelines"
# Often enough that a status looks alive, seldom enough to cost nothing.
LOOK_S = 0.5
DONE, FAILED, REFUSED = 0, 1, 2


def open_stream(spark: "SparkSession", pipeline: Pipeline, bootstrap: str, source: Source) -> "DataFrame":
    if not source.is_stream:
        return open_table(spark, source)
    return spark.readStream.format("headrace").options(**source_options(pipeline, bootstrap, source)).load()


def source_options(pipeline: Pipeline, bootstrap: str, source: Source) -> dict[str, str]:
    return {
        "kafka.bootstrap.servers": bootstrap,
        **({"subscribePattern": source.pattern} if source.pattern else {"subscribe": ",".join(source.topics)}),
        "startingOffsets": source.starting,
        "includeHeaders": "true",
        "commitGroup": pipeline.group,
        **source.options,
    }


class Worker:
    def __init__(self, pipeline: Pipeline, state: PipelineState, bootstrap: str) -> None:
        self._pipeline = pipeline
        self._state = state
        self._bootstrap = bootstrap
        self._stop = threading.Event()
        self._producer: Producer | None = None
        self._told = ""

    def ask_to_stop(self, *_: object) -> None:
        self._stop.set()

    def run(self, spark: "SparkSession") -> None:
        pipeline = self._pipeline
        planned = plan(spark, pipeline, lambda source: open_stream(spark, pipeline, self._bootstrap, source))
        queries = start_queries(pipeline, planned, self._bootstrap, str(self._state.checkpoint))
        started_ms = int(time.time() * 1000)
        self._state.write("run", {"started_ms": started_ms, "stalled_after_ms": pipeline.stalled_after_ms})
        log.info("pipeline %s runs as query %s", pipeline.name, queries[0].id)
        while all(query.isActive for query in queries) and not self._stop.wait(LOOK_S):
            self._tell(queries[0])
        if not self._stop.is_set() and all(query.exception() is None for query in queries):
            for query in queries:  # one of them has read what there was; so will the other
                query.awaitTermination()
        for query in queries:
            self._drain(query)
        self._tell(queries[0])
        if self._producer is not None:
            self._producer.flush(5)
        for query in queries:
            failure = query.exception()
            if failure is not None:
                raise failure

    def _drain(self, query: "StreamingQuery") -> None:
        """A batch under way is finished: what it has read is written, and the next start has nothing to repeat."""
        while query.isActive and query.status.get("isTriggerActive"):
            time.sleep(LOOK_S / 5)
        query.stop()

    def _tell(self, query: "StreamingQuery") -> None:
        """Once for each batch; Spark repeats the last one while nothing happens."""
        newest = query.lastProgress
        value: dict[str, Any] = json.loads(newest.json) if newest is not None else {}
        if value and value["timestamp"] != self._told:
            self._told = value["timestamp"]
            self._publish(progress_of(self._pipeline.name, value, int(time.time() * 1000)))

    def _publish(self, progress: Progress) -> None:
        self._state.write("progress", progress.to_json())
        if self._producer is None:
            from headrace.client.factory import make_producer

            self._producer = make_producer(self._bootstrap)
        self._producer.produce(PROGRESS_TOPIC, json.dumps(progress.to_json()).encode(), key=progress.pipeline.encode())
        self._producer.poll(0)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m headrace.spark.pipeline.worker", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--bootstrap", required=True)
    parser.add_argument("--state", type=Path, required=True, help="the folder that holds the pipeline's folder")
    parser.add_argument("--master")
    parser.add_argument("--remote")
    given = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        pipeline = read_any(given.file)
        worker = Worker(pipeline, PipelineState(pipeline.name, given.state), given.bootstrap)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, worker.ask_to_stop)
        spark = open_session(pipeline.group, master=given.master, remote=given.remote, settings=pipeline.spark)
        worker.run(spark)
    except InvalidConfig as error:
        log.error("%s", error)
        return REFUSED
    except HeadraceError as error:
        log.error("%s", error)
        return FAILED
    except Exception:
        log.exception("the pipeline ended")
        return FAILED
    return DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
