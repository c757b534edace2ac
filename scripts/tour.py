"""Starts a node and shows it at work: what `make run` runs.

A node on embedded defaults, a stream of synthetic orders, a pipeline on Spark that decodes them, joins customers, sums
in windows and puts aside what does not fit, and an archive of the orders as a Delta table. It prints how they fare and
then what came of it. Everything runs on until Ctrl-C, or stops at once with --once. The exit code is 0, or 1 if the
tour failed.
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
# The tour talks to a node on this machine that has just said it is ready: longer means that it is stuck.
STEP_TIMEOUT_S = 20.0
# A command is a process that has to come up first, beside whatever else the machine does.
COMMAND_TIMEOUT_S = 120.0
# Spark takes ten seconds to start on a quiet machine, and the windows ten more to close; past this it will not come.
RESULT_TIMEOUT_S = 600.0
LOOK_S = 1.0
# What is to be seen before the tour ends: some closed windows, some dead letters, some commits of the archive.
WINDOWS_MIN, DEAD_MIN, COMMITS_MIN = 3, 1, 2


def main() -> int:
    arguments = parse_arguments()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(line_buffering=True)  # in step with the node's log, also into a pipe
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
    parser.add_argument("--listen", default="localhost:9092", metavar="HOST:PORT")
    parser.add_argument("--http", default="127.0.0.1:8080", metavar="HOST:PORT")
    parser.add_argument("--grpc", default="127.0.0.1:9090", metavar="HOST:PORT")
    parser.add_argument("--data-dir", default="./data", metavar="DIR")
    parser.add_argument("--once", action="store_true", help="stop after the tour")
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
            print("\nEverything runs on; Ctrl-C stops it.")
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
        print(f"\nheadrace is up: node process {self._ready['pid']}, Kafka protocol on {self._address}")
        created = self._create_topics()
        if created:
            shutil.rmtree(self._lake, ignore_errors=True)  # of topics that are gone
        self._lake.mkdir(parents=True, exist_ok=True)
        print(f"topics {ORDERS}, {TOTALS}, {DEAD}: {'created' if created else 'were here already'}")
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
            # Whoever moved or removed the folder of an earlier tour meant it: its pipeline is this one's now.
            (("pipeline", "run", str(file), "--take-over"), "pipeline.log"),
            (("archive", "run", "--interval", "3"), "archive.log"),
        ):
            started = command(*words, log=self._lake / log, environment=self._environment)
            self._commands.append(running.enter_context(started))
        running.enter_context(self._feeder)
        print(f"orders come in; the pipeline {file} starts on Spark, the archive grows in {self._lake / ORDERS}\n")

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
            raise TourFailed(f"the node ended with {self._process.returncode}")

    def _tell(self, elapsed_s: float) -> None:
        pipeline = "Spark is starting"
        if self._progress.exists():
            newest = json.loads(self._progress.read_text())
            pipeline = (
                f"batch {newest['batch']} of {newest['rows_in']:,} rows in {newest['batch_ms']} ms, "
                f"{newest['dead_letters']} dead, lag {newest['lag_records']:,}"
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
        print(f"\nwhat the pipeline wrote to {TOTALS}, of {windows} windows:\n")
        print("  country    orders        total")
        for country in sorted(orders):
            print(f"  {country:<8} {orders[country]:>8,} {totals[country]:>12,.2f}")
        print(f"\n{dead} orders made no sense and are in {DEAD}, each with the reason")
        print(f"{self._feeder.sent:,} orders were sent; the archive of {ORDERS} has {self._commits()} commits")
        self._tell_addresses(data_dir)

    def _tell_addresses(self, data_dir: str) -> None:
        rest, grpc = "http://{}:{}".format(*self._ready["http"]), "{}:{}".format(*self._ready["grpc"])
        print(f"""
Try it from another terminal:
  any Kafka client   bootstrap.servers={self._address}
  headrace           .venv/bin/headrace consume {DEAD} --follow
  SQL, all there is  .venv/bin/headrace sql "select customer, count(*), sum(amount) from {ORDERS} group by 1"
  the archive        .venv/bin/headrace archive status
  curl               curl {rest}/topics
  a browser          {rest}/docs
  gRPC               {grpc}
The data lies in {Path(data_dir).resolve()}, tables, pipeline and logs in {self._lake}""")


if __name__ == "__main__":
    sys.exit(main())
