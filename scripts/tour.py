"""The demo of `make run`: a node with synthetic orders, a Spark pipeline and a Delta archive.

The pipeline decodes orders, joins customers, computes totals in windows, and sends records that cannot be decoded to a
dead-letter topic. The archive stores the orders in a Delta table. The demo prints their progress and the results, and
runs until Ctrl-C; with --once it exits after the results. The exit code is 0, or 1 if the demo failed.
"""

import argparse
import io
import json
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from contextlib import ExitStack
from pathlib import Path
from types import FrameType
from typing import Any

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from tour_orders import COLUMNS, DEAD, ORDERS, QUIET, TOTALS, Feeder, read_all, write_files
from tour_processes import STOP_SIGNALS, Command, TourFailed, command, node

PARTITIONS = 3
# Timeout of a request to a local node that is ready.
STEP_TIMEOUT_S = 20.0
# Includes the start of the command's process on a busy host.
COMMAND_TIMEOUT_S = 120.0
# Spark starts in 10 s on an idle host, and the windows close 10 s later.
RESULT_TIMEOUT_S = 600.0
LOOK_S = 1.0
# The demo shows results after this many closed windows, dead-letter records and commits of the archive.
WINDOWS_MIN, DEAD_MIN, COMMITS_MIN = 3, 1, 2


def main() -> int:
    arguments = parse_arguments()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # keeps the order with the node's log, also in a pipe
    for number in STOP_SIGNALS:
        signal.signal(number, interrupt)
    try:
        run(arguments)
    except KeyboardInterrupt:
        print("\nstopped")
    except (TourFailed, KafkaException) as error:
        print(f"tour: {error}", file=sys.stderr)
        return 1
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--listen",
        default="localhost:9092",
        metavar="HOST:PORT",
        help="address for Kafka clients (default %(default)s)",
    )
    parser.add_argument(
        "--http", default="127.0.0.1:8080", metavar="HOST:PORT", help="address for REST (default %(default)s)"
    )
    parser.add_argument(
        "--grpc", default="127.0.0.1:9090", metavar="HOST:PORT", help="address for gRPC (default %(default)s)"
    )
    parser.add_argument(
        "--data-dir", default="./data", metavar="DIR", help="directory for partitions (default %(default)s)"
    )
    parser.add_argument("--once", action="store_true", help="exit after the results")
    return parser.parse_args()


def interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def run(arguments: argparse.Namespace) -> None:
    with ExitStack() as running:
        process, ready = running.enter_context(node(arguments))
        tour = Tour(ready, Path(f"{arguments.data_dir}-lake").resolve(), process)
        tour.prepare()
        tour.start(running)
        tour.watch()
        tour.show(arguments.data_dir)
        if not arguments.once:
            print("\nThe node, the pipeline and the archive keep running. Press Ctrl-C to stop.")
            tour.stay()
        print("\nstopping")


class Tour:
    def __init__(self, ready: dict[str, Any], lake: Path, process: subprocess.Popen[bytes]) -> None:
        self._ready, self._lake, self._process = ready, lake, process
        self._address = ",".join(f"{host}:{port}" for host, port in ready["listeners"].values())
        self._environment = {
            "HEADRACE_BOOTSTRAP": self._address,
            "HEADRACE_PIPELINES": str(lake / "pipelines"),
        }
        self._commands: list[Command] = []
        self._feeder = Feeder(self._address)
        self._progress = lake / "pipelines" / "tour" / "progress.json"

    def prepare(self) -> None:
        print(f"\nheadrace is running: node process {self._ready['pid']}, Kafka protocol on {self._address}")
        created = self._create_topics()
        if created:
            shutil.rmtree(self._lake, ignore_errors=True)  # files of deleted topics
        self._lake.mkdir(parents=True, exist_ok=True)
        print(f"topics {ORDERS}, {TOTALS}, {DEAD}: {'created' if created else 'already exist'}")
        words = ["--to", "delta", "--path", str(self._lake / ORDERS), "--json", COLUMNS]
        with command(
            "archive", "enable", ORDERS, *words, log=self._lake / "enable.log", environment=self._environment
        ) as enabling:
            enabling.wait(COMMAND_TIMEOUT_S)

    def _create_topics(self) -> bool:
        admin = AdminClient({"bootstrap.servers": self._address, **QUIET})
        wanted = [NewTopic(name, PARTITIONS, 1) for name in (ORDERS, TOTALS, DEAD)]
        created = False
        for future in admin.create_topics(wanted).values():
            try:
                future.result(STEP_TIMEOUT_S)
                created = True
            except KafkaException as error:
                if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                    raise
        return created

    def start(self, running: ExitStack) -> None:
        file = write_files(self._lake)
        for words, log in (
            # The directory of an earlier demo may be moved or deleted; its pipeline belongs to this one.
            (("pipeline", "run", str(file), "--take-over"), "pipeline.log"),
            (("archive", "run", "--interval", "3"), "archive.log"),
        ):
            started = command(*words, log=self._lake / log, environment=self._environment)
            self._commands.append(running.enter_context(started))
        running.enter_context(self._feeder)
        print(f"producing orders; starting the pipeline {file} on Spark; archiving to {self._lake / ORDERS}\n")

    # Watching

    def watch(self) -> None:
        began = time.monotonic()
        while not self._is_shown():
            self._check()
            if time.monotonic() - began > RESULT_TIMEOUT_S:
                said = "\n".join(one.tail() for one in self._commands)
                raise TourFailed(f"no result after {RESULT_TIMEOUT_S:.0f} s:\n{said}")
            time.sleep(LOOK_S)
            self._tell(time.monotonic() - began)

    def _is_shown(self) -> bool:
        if not self._progress.exists() or self._commits() < COMMITS_MIN:
            return False
        windows = {json.loads(value)["since"] for value in read_all(self._address, TOTALS)}
        return len(windows) >= WINDOWS_MIN and len(read_all(self._address, DEAD)) >= DEAD_MIN

    def _commits(self) -> int:
        return len(list((self._lake / ORDERS / "_delta_log").glob("*.json"))) - 1

    def _check(self) -> None:
        for one in self._commands:
            one.check()
        if self._process.poll() is not None:
            raise TourFailed(f"the node exited with code {self._process.returncode}")

    def _tell(self, elapsed_s: float) -> None:
        pipeline = "Spark is starting"
        if self._progress.exists():
            newest = json.loads(self._progress.read_text())
            pipeline = (
                f"batch {newest['batch']} of {newest['rows_in']:,} rows in {newest['batch_ms']} ms, "
                f"{newest['dead_letters']} dead letters, lag {newest['lag_records']:,}"
            )
        sent, commits = f"{self._feeder.sent:,}", max(self._commits(), 0)
        print(f"{elapsed_s:4.0f} s   {sent:>7} orders   pipeline: {pipeline}   archive: {commits} commits")

    def stay(self) -> None:
        while True:
            self._check()
            time.sleep(LOOK_S)

    # The result

    def show(self, data_dir: str) -> None:
        rows = [json.loads(value) for value in read_all(self._address, TOTALS)]
        dead = len(read_all(self._address, DEAD))
        orders: defaultdict[str, int] = defaultdict(int)
        totals: defaultdict[str, float] = defaultdict(float)
        for row in rows:
            orders[row["country"]] += row["orders"]
            totals[row["country"]] += row["total"]
        windows = len({row["since"] for row in rows})
        print(f"\nRecords of {TOTALS}, written by the pipeline for {windows} windows:\n")
        print("  country    orders        total")
        for country in sorted(orders):
            print(f"  {country:<8} {orders[country]:>8,} {totals[country]:>12,.2f}")
        print(f"\n{dead} invalid orders were routed to the dead-letter topic {DEAD}, each with the error")
        print(f"{self._feeder.sent:,} orders were produced; the archive of {ORDERS} has {self._commits()} commits")
        self._tell_addresses(data_dir)

    def _tell_addresses(self, data_dir: str) -> None:
        rest, grpc = "http://{}:{}".format(*self._ready["http"]), "{}:{}".format(*self._ready["grpc"])
        print(f"""
Try it in another terminal:
  any Kafka client   bootstrap.servers={self._address}
  command line       .venv/bin/headrace consume {DEAD} --follow
  SQL                .venv/bin/headrace sql "select customer, count(*), sum(amount) from {ORDERS} group by 1"
  archive            .venv/bin/headrace archive status
  REST               curl {rest}/topics
  REST in a browser  {rest}/docs
  gRPC               {grpc}
Partitions are in {Path(data_dir).resolve()}; tables, pipeline and logs are in {self._lake}""")


if __name__ == "__main__":
    sys.exit(main())
