"""Pipelines into every kind of sink while their processes and the broker are killed, compared with plain Python.

`test_pipelines.py` does the same with Delta, by the command line.
"""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic
from pyarrow import parquet as pq

from headrace.client.sync.client import ClientConfig, Cluster
from headrace.client.sync.fetcher import read_committed_records
from headrace.lake.iceberg import IcebergLakeTable
from headrace.testing import LocalBroker
from tests.torture.pipeline_stage import POISON, reference
from tests.torture.plan import Dice, kills
from tests.torture.sinks_driver import KINDS, target_of

ROOT = Path(__file__).parents[2]
PARTITIONS = 2
RECORDS_BETWEEN_KILLS_MAX = 2000
WAIT_S = 300.0  # a driver takes ten seconds to start where nothing else runs, and minutes on a machine full of tests
VICTIMS = ("driver", "broker", "worker")


class Driver:
    """The process group of the pipelines: Python, the JVM, the workers."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._command = [sys.executable, "-m", "tests.torture.sinks_driver", bootstrap, str(folder)]
        self._log = folder / "driver.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start_if_gone(self) -> None:
        if self._process is None or self._process.poll() is not None:
            with self._log.open("ab") as log:
                self._process = subprocess.Popen(
                    self._command, cwd=ROOT, stdout=log, stderr=log, start_new_session=True
                )

    def kill(self) -> None:
        if self._process is not None and self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()

    def kill_worker(self, dice: Dice) -> None:
        """One of the processes in which sources are planned and tasks run."""
        assert self._process is not None, "the driver was started"
        with suppress(psutil.Error):
            family = psutil.Process(self._process.pid).children(recursive=True)
            workers = [one for one in family if "java" not in one.name()]
            if workers:
                dice.choice(workers).kill()

    def said(self) -> str:
        return self._log.read_text(errors="replace")[-6000:] if self._log.exists() else ""


class Stage:
    """What was sent, and what each sink has."""

    def __init__(self, bootstrap: str, folder: Path, dice: Dice) -> None:
        self._folder, self._dice = folder, dice
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True})
        self._cluster = Cluster(ClientConfig(bootstrap=bootstrap, patience_s=60))
        self.driver = Driver(bootstrap, folder)
        self.sent: list[bytes] = []
        names = ["orders", "rows", *(f"dead-{kind}" for kind in KINDS)]
        admin = AdminClient({"bootstrap.servers": bootstrap})
        for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
            future.result(30)

    def send(self, count: int) -> None:
        for number in range(len(self.sent), len(self.sent) + count):
            order = {"id": number, "customer": f"c{number % 7}", "amount": number / 4}
            value = self._dice.choice(POISON) if self._dice.random() < 0.01 else json.dumps(order).encode()
            self._producer.produce("orders", value, b"%d" % number, partition=number % PARTITIONS)
            self.sent.append(value)
        assert self._producer.flush(60) == 0

    def rows(self, kind: str) -> list[dict[str, Any]]:
        place = target_of(kind, self._folder)
        if kind == "topic":
            return [json.loads(record.value or b"") for _, record in read_committed_records(self._cluster, place)]
        if kind == "iceberg":
            if not IcebergLakeTable.exists(place):
                return []
            rows: list[dict[str, Any]] = IcebergLakeTable.open(place).native.scan().to_arrow().to_pylist()
            return rows
        return [row for file in _committed_files(Path(place)) for row in pq.read_table(file).to_pylist()]

    def letters(self, kind: str) -> Counter[tuple[bytes, bytes]]:
        found = read_committed_records(self._cluster, f"dead-{kind}")
        return Counter((record.key or b"", record.value or b"") for _, record in found)

    def poison(self) -> Counter[tuple[bytes, bytes]]:
        return Counter((b"%d" % at, value) for at, value in enumerate(self.sent) if reference(value) is None)

    def wait_for(self, kind: str, rows: int, letters: int) -> None:
        best, deadline = -1, 0.0
        while (have := (len(self.rows(kind)), self.letters(kind).total()))[0] < rows or have[1] < letters:
            if sum(have) > best:
                best, deadline = sum(have), time.monotonic() + WAIT_S
            assert time.monotonic() < deadline, f"{kind} has {have} of {rows} rows and {letters} letters"
            self.driver.start_if_gone()
            time.sleep(0.2)

    def check(self) -> None:
        wanted = [row for row in map(reference, self.sent) if row is not None]
        for kind in KINDS:
            self.wait_for(kind, len(wanted), self.poison().total())
            assert sorted(self.rows(kind), key=lambda row: row["id"]) == wanted, f"rows of {kind}"
            assert self.letters(kind) == self.poison(), f"dead letters of {kind}"

    def close(self) -> None:
        self.driver.kill()
        self._cluster.close()


def _committed_files(folder: Path) -> set[Path]:
    """Those that Spark's log of the directory names: what readers take who know of it."""
    named = set()
    for log in (folder / "_spark_metadata").glob("[0-9]*"):
        for line in log.read_text().splitlines()[1:]:
            named.add(Path(unquote(urlsplit(json.loads(line)["path"]).path)))
    return named


@pytest.mark.timeout(2 * WAIT_S * (kills(1, times=2) + 2))
def test_every_sink_has_what_plain_python_makes_whoever_dies(dice: Dice, tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    died: Counter[str] = Counter()
    with LocalBroker(memory=False) as broker:
        stage = Stage(broker.bootstrap, tmp_path, dice)
        try:
            while died.total() < kills(1, times=2):
                before = {kind: len(stage.rows(kind)) for kind in KINDS}
                stage.send(dice.randrange(100, RECORDS_BETWEEN_KILLS_MAX))
                for kind in KINDS:
                    stage.wait_for(kind, before[kind] + 1, 0)
                stage.send(dice.randrange(100, RECORDS_BETWEEN_KILLS_MAX))
                time.sleep(dice.random())
                victim = next((one for one in VICTIMS if one not in died), None) or dice.choice(VICTIMS)
                _kill(victim, stage, broker, dice)
                died[victim] += 1
            stage.check()
        except BaseException:
            print(stage.driver.said())
            raise
        finally:
            stage.close()
    print(f"{died.total()} kills: {dict(died)}; {len(stage.sent)} records in each of {', '.join(KINDS)}, each once")


def _kill(victim: str, stage: Stage, broker: LocalBroker, dice: Dice) -> None:
    if victim == "broker":
        broker.kill()
        time.sleep(dice.random())
        broker.start()
    elif victim == "worker":
        stage.driver.kill_worker(dice)
    else:
        stage.driver.kill()
