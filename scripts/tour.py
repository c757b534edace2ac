"""Starts a node in the foreground and shows it at work: what `make run` runs.

The node is a child process on the given address and data folder. The tour is an ordinary Kafka client of it:
it creates a topic, produces, consumes, prints the addresses, and ends by itself. Then the node runs on until
Ctrl-C, or stops at once with --once. The exit code is the node's, or 1 if the tour failed.
"""

import argparse
import io
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.model.settings import GatewaySettings, Listener, Settings, split_address

TOPIC = "tour"
PARTITIONS = 3
RECORDS = {
    "ada": "wrote the first program",
    "grace": "found the first bug",
    "alan": "asked if machines think",
}
# The tour talks to a node on this machine that has just said it is ready: longer means that it is stuck.
STEP_TIMEOUT_S = 20.0
# A clean stop flushes what is open; longer than this, and something holds it.
STOP_TIMEOUT_S = 30.0
# The clients' own log would repeat, twenty times a second, what the tour says once.
QUIET = {"log_level": 2}
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class TourFailed(Exception):
    """The node answered something else than it should have."""


def main() -> int:
    arguments = parse_arguments()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # in step with the node's log, also into a pipe
    for number in STOP_SIGNALS:
        signal.signal(number, interrupt)
    with node(arguments) as (process, ready):
        try:
            if ready is None:
                raise TourFailed("the node did not start; its message is above")
            tour(ready, arguments.data_dir)
            if not arguments.once:
                print("\nThe node runs on; Ctrl-C stops it.")
                return process.wait()
        except KeyboardInterrupt:
            print("\nstopping")
        except (TourFailed, KafkaException) as error:
            print(f"tour: {error}", file=sys.stderr)
            return 1
        return stop(process)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--listen", default="localhost:9092", metavar="HOST:PORT")
    parser.add_argument("--http", default="127.0.0.1:8080", metavar="HOST:PORT")
    parser.add_argument("--grpc", default="127.0.0.1:9090", metavar="HOST:PORT")
    parser.add_argument("--data-dir", default="./data", metavar="DIR")
    parser.add_argument("--once", action="store_true", help="stop after the tour")
    return parser.parse_args()


# --- the node -----------------------------------------------------------------------------------------------


@contextmanager
def node(arguments: argparse.Namespace) -> Iterator[tuple[subprocess.Popen[bytes], dict[str, Any] | None]]:
    """The running node and the line it wrote when it was ready; None if it ended before that."""
    read_end, write_end = os.pipe()
    process = subprocess.Popen(
        [
            *[sys.executable, "-m", "headrace.app.node"],
            *["--settings-json", settings_json(arguments)],
            *["--ready-fd", str(write_end)],
        ],
        pass_fds=[write_end],
        stdin=subprocess.DEVNULL,
        # A group of its own: Ctrl-C reaches this process alone, which passes on exactly one signal.
        process_group=0,
    )
    os.close(write_end)
    try:
        with os.fdopen(read_end) as ready:
            line = ready.readline()
        yield process, json.loads(line) if line else None
    finally:
        stop(process)


def settings_json(arguments: argparse.Namespace) -> str:
    listener = Listener.parse(f"PLAINTEXT://{arguments.listen}")
    host, port = split_address(arguments.http)
    grpc_host, grpc_port = split_address(arguments.grpc)
    gateway = GatewaySettings(host=host, port=port, grpc_host=grpc_host, grpc_port=grpc_port)
    return Settings(listeners=(listener,), data_dir=arguments.data_dir, gateway=gateway).to_json()


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def stop(process: subprocess.Popen[bytes]) -> int:
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # an impatient second Ctrl-C must not leave the node behind
    if process.poll() is None:
        process.terminate()
    try:
        return process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        print(f"tour: the node did not stop within {STOP_TIMEOUT_S:.0f} s and was killed", file=sys.stderr)
        return 1


# --- the tour -----------------------------------------------------------------------------------------------


def tour(ready: dict[str, Any], data_dir: str) -> None:
    address = ",".join(f"{host}:{port}" for host, port in ready["listeners"].values())
    rest, grpc = "http://{}:{}".format(*ready["http"]), "{}:{}".format(*ready["grpc"])
    print(f"\nheadrace is up: node process {ready['pid']}")
    print(f"Kafka protocol on {address}, REST on {rest}, gRPC on {grpc}\n")
    created = create_topic(address)
    print(f"1. topic {TOPIC!r} with {PARTITIONS} partitions: {'created' if created else 'was here already'}")
    places = produce(address)
    print(f"2. produced {len(RECORDS)} records, each acknowledged after it was on disk:")
    for key, (partition, offset) in places.items():
        print(f"     {key:<6} → partition {partition}, offset {offset}")
    print("3. consumed them again:")
    for key, value in consume(address, places):
        print(f"     {key:<6} {value}")
    print(f"""
Try it from another terminal:
  any Kafka client   bootstrap.servers={address}
  kcat               kcat -b {address} -C -t {TOPIC} -e
  headrace           .venv/bin/headrace topics list
  curl               curl {rest}/topics
  a browser          {rest}/docs
The data lies in {Path(data_dir).resolve()}""")


def create_topic(address: str) -> bool:
    admin = AdminClient({"bootstrap.servers": address, **QUIET})
    try:
        admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(STEP_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
        return False
    return True


def produce(address: str) -> dict[str, tuple[int, int]]:
    """Where each record went: its key → partition and offset."""
    places: dict[str, tuple[int, int]] = {}

    def delivered(error: KafkaError | None, message: Message) -> None:
        key, partition, offset = message.key(), message.partition(), message.offset()
        if error is None and key is not None and partition is not None and offset is not None:
            places[key.decode()] = (partition, offset)

    producer = Producer({"bootstrap.servers": address, "enable.idempotence": True, **QUIET})
    for key, value in RECORDS.items():
        producer.produce(TOPIC, key=key, value=value, on_delivery=delivered)
    producer.flush(STEP_TIMEOUT_S)
    if len(places) < len(RECORDS):
        raise TourFailed(f"only {len(places)} of {len(RECORDS)} records were acknowledged")
    return places


def consume(address: str, places: dict[str, tuple[int, int]]) -> Iterator[tuple[str, str]]:
    """The tour's own records, read from where each partition's first one was put."""
    starts: dict[int, int] = {}
    for partition, offset in places.values():
        starts[partition] = min(offset, starts.get(partition, offset))
    # A group id is demanded by the client even when partitions are assigned by hand and nothing is committed.
    consumer = Consumer({"bootstrap.servers": address, "group.id": TOPIC, "enable.auto.commit": False, **QUIET})
    consumer.assign([TopicPartition(TOPIC, partition, offset) for partition, offset in starts.items()])
    try:
        for _ in places:
            message = consumer.poll(STEP_TIMEOUT_S)
            key, value = (message.key(), message.value()) if message and not message.error() else (None, None)
            if key is None or value is None:
                raise TourFailed(f"no record came back: {message.error() if message else 'nothing in time'}")
            yield key.decode(), value.decode()
    finally:
        consumer.close()


if __name__ == "__main__":
    sys.exit(main())
