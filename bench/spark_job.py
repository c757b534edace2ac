"""One Spark session that reads or writes a topic through one door, and prints a JSON line with rows and seconds.

python -m bench.spark_job DOOR JOB BOOTSTRAP TOPIC ROWS [JAR,JAR…]

DOOR is `headrace` or `kafka`, JOB one of `batch`, `stream`, `sink`. Each job first runs unmeasured: pipelines live
for long, and a JVM compiles what it has run. Reading 10 million rows as a stream took 12.8, 7.1, 5.9, 5.5 and 5.1 s
with headrace, 18.2, 11.6, 12.0, 11.5 and 10.7 s with the connector.
"""

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import psutil

ROWS_PER_TRIGGER = 1_000_000
WARMING_RUNS = 3
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "timestampType")


def main(door: str, job: str, bootstrap: str, topic: str, rows: int, jars: str) -> None:
    from pyspark.sql import SparkSession

    from headrace.spark.session import SETTINGS, use_this_python

    use_this_python()

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").config(map={**SETTINGS})
    builder = builder.config("spark.log.level", "ERROR").config("spark.driver.memory", "2g")
    session = (builder.config("spark.jars", jars) if jars else builder).getOrCreate()
    options = {"kafka.bootstrap.servers": bootstrap}
    jobs: dict[str, Callable[[], int]] = {
        "batch": lambda: _batch(session, door, options, topic),
        "stream": lambda: _stream(session, door, options, topic),
        "sink": lambda: _sink(session, door, options, topic, rows),
    }
    for _ in range(WARMING_RUNS):
        jobs[job]()
    started, cpu_before = time.monotonic(), _cpu_seconds()
    done = jobs[job]()
    print(json.dumps({"rows": done, "seconds": time.monotonic() - started, "cpu": _cpu_seconds() - cpu_before}))
    session.stop()


def _cpu_seconds() -> float:
    """Of this process, its JVM and the workers: what Spark costs, whoever else uses the machine."""
    own = psutil.Process()
    times = [one.cpu_times() for one in (own, *own.children(recursive=True))]
    return sum(time.user + time.system for time in times)


def _batch(session: Any, door: str, options: dict[str, str], topic: str) -> int:
    """Every column of every row is made, and counted while it passes."""
    from pyspark.sql import Observation
    from pyspark.sql.functions import count, lit

    counted = Observation()
    frame = session.read.format(door).options(**options, subscribe=topic).load()
    frame.observe(counted, count(lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    return int(counted.get["rows"])


def _stream(session: Any, door: str, options: dict[str, str], topic: str) -> int:
    checkpoint = tempfile.mkdtemp(prefix="bench-spark-")
    try:
        frame = session.readStream.format(door).options(
            **options, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger=ROWS_PER_TRIGGER
        )
        writer = frame.load().writeStream.format("noop").option("checkpointLocation", checkpoint)
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(progress.numInputRows for progress in query.recentProgress)
    finally:
        shutil.rmtree(checkpoint, ignore_errors=True)


def _sink(session: Any, door: str, options: dict[str, str], topic: str, rows: int) -> int:
    """Values of 100 bytes and keys of 8, made by Spark itself, so that only the writing differs."""
    frame = session.range(0, rows, 1, 4).selectExpr(
        "cast(lpad(cast(id as string), 8, '0') as binary) as key",
        "cast(lpad(cast(id as string), 100, 'x') as binary) as value",
    )
    settings = {"kafka.batch.size": "900000", "kafka.linger.ms": "50"}
    frame.write.format(door).options(**options, **settings, topic=topic).mode("append").save()
    return rows


if __name__ == "__main__":
    _door, _job, _bootstrap, _topic, _rows, *_jars = sys.argv[1:]
    main(_door, _job, _bootstrap, _topic, int(_rows), _jars[0] if _jars else "")
