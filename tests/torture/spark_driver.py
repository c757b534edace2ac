"""A Spark driver to be killed: copies one topic to another, exactly once, until somebody ends it.

python -m tests.torture.spark_driver BOOTSTRAP SOURCE TARGET CHECKPOINT
"""

import sys


def main(bootstrap: str, source: str, target: str, checkpoint: str) -> None:
    from headrace.spark.session import open_session

    # Four tries for a task: a worker that is killed costs an attempt, not the query.
    session = open_session("a driver to be killed", master="local[2,4]", settings={"spark.log.level": "ERROR"})
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
