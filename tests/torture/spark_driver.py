"""A Spark driver to be killed: copies one topic to another, exactly once, until somebody ends it.

python -m tests.torture.spark_driver BOOTSTRAP SOURCE TARGET CHECKPOINT MASTER
"""

import os
import sys


def main(bootstrap: str, source: str, target: str, checkpoint: str, master: str) -> None:
    import pyspark

    from headrace.spark.session import open_session

    os.environ["SPARK_HOME"] = pyspark.__path__[0]  # executors of their own are started from there
    settings = {"spark.log.level": "ERROR", "spark.executor.memory": "512m"}
    session = open_session("a driver to be killed", master=master, settings=settings)
    address = {"kafka.bootstrap.servers": bootstrap}
    stream = session.readStream.format("headrace").options(
        **address, subscribe=source, startingOffsets="earliest", maxOffsetsPerTrigger=100, minPartitions=4
    )
    sink = stream.load().select("key", "value").writeStream.format("headrace")
    query = sink.options(
        **address, topic=target, deliveryGuarantee="exactly-once", checkpointLocation=checkpoint
    ).start()
    print("started", flush=True)
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
