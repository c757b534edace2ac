"""A pipeline as its users run it, by the command line, and what a few lines of plain Python make of the same records.

One record in a hundred is poison. In the end the table and the dead letters are compared with that: nothing is missing,
nothing is there twice, nothing is in the wrong place.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.client.sync.client import ClientConfig, Cluster
from headrace.client.sync.fetcher import read_committed_records
from headrace.pipeline.dead_letters import letter_of
from headrace.testing import LocalBroker
from tests.patience import awaited, until
from tests.torture.plan import Dice

# Spark takes ten seconds to start where nothing else runs, and minutes on a machine full of tests.
WAIT_S = 300
RECORDS_BETWEEN_KILLS = 2000
POISON = (
    *(b"{broken", b'"text"', b'{"id": "seven", "amount": 1}', b'{"id": 7, "amount": -1.5}', b"\xff\xfe"),
    *(b"", b'{"id": 7, "amount": 1}{"id": 8, "amount": 1}', b'{"id": 7.5, "amount": 1}'),
)
FILE = """\
pipeline: {name}
sources:
  orders:
    topic: {name}-orders
    starting: {starting}
    format: json
    schema: id bigint, customer string, amount double
    reject:
      the amount is negative: amount < 0
    options: {{maxOffsetsPerTrigger: "1000"}}
sql: select id, upper(customer) as customer, amount * 2 as twice from orders
sink:
  delta: {table}
dead_letters: {name}-dead
trigger: 100 milliseconds
"""


def reference(value: bytes) -> dict[str, Any] | None:
    """What the pipeline should make of a record; None for a dead letter."""
    try:
        row = json.loads(value)
        if not isinstance(row, dict) or not isinstance(row["id"], int) or row["amount"] < 0:
            return None
    except ValueError:
        return None
    return {"id": row["id"], "customer": row["customer"].upper(), "twice": row["amount"] * 2}


class Stage:
    """A pipeline on the command line, and everything that was sent to it."""

    def __init__(
        self, broker: LocalBroker, folder: Path, dice: Dice, *, name: str = "golden", starting: str = "earliest"
    ) -> None:
        self.broker, self.dice, self.name = broker, dice, name
        self.table, self.file = folder / "table", folder / f"{name}.yaml"
        self.file.write_text(FILE.format(table=self.table, name=name, starting=starting))
        self.state = folder / "state"
        self.sent: list[bytes] = []
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.create_topics([NewTopic(f"{name}-{kind}", 2, 1) for kind in ("orders", "dead")]).values():
            future.result(30)
        self._producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True})
        self._cluster = Cluster(ClientConfig(bootstrap=broker.bootstrap, patience_s=60))

    def headrace(self, *words: str, succeeds: bool = True, state: Path | None = None) -> str:
        where = {"HEADRACE_PIPELINES": str(state or self.state), "HEADRACE_BOOTSTRAP": self.broker.bootstrap}
        done = subprocess.run(
            [sys.executable, "-m", "headrace.cli.main", "pipeline", *words],
            env=os.environ | where, capture_output=True, text=True, timeout=WAIT_S, check=False,
        )  # fmt: skip
        assert (done.returncode == 0) is succeeds, f"{words}: {done.stdout} {done.stderr}"
        return done.stdout if succeeds else done.stderr

    def status(self) -> dict[str, Any]:
        (row,) = json.loads(self.headrace("status", self.name, "--json"))
        return row

    def send(self, count: int) -> None:
        for number in range(len(self.sent), len(self.sent) + count):
            order = {"id": number, "customer": f"c{number % 7}", "amount": number / 4}
            value = self.dice.choice(POISON) if self.dice.random() < 0.01 else json.dumps(order).encode()
            self._producer.produce(
                f"{self.name}-orders", value, partition=number % 2, headers=[("number", str(number))]
            )
            self.sent.append(value)
        assert self._producer.flush(60) == 0

    def worker(self) -> psutil.Process:
        """Of the pipeline that runs: the process that the supervisor has started, and started again."""
        found = awaited(self._worker, bool, lambda: f"a worker\n{self.headrace('logs', self.name)}", WAIT_S)
        assert found is not None, "it was awaited"
        return found

    def _worker(self) -> psutil.Process | None:
        holder = self.status()["process"]
        for child in psutil.Process(holder).children() if holder else []:
            if "headrace.spark.pipeline.worker" in child.cmdline():
                return child
        return None

    def rows(self) -> list[dict[str, Any]]:
        from deltalake import DeltaTable

        if not DeltaTable.is_deltatable(str(self.table)):
            return []
        return DeltaTable(str(self.table)).to_pyarrow_table().to_pylist()

    def letters(self) -> list[Any]:
        found = [
            letter_of(place, record) for place, record in read_committed_records(self._cluster, f"{self.name}-dead")
        ]
        assert None not in found
        return found

    def wait_for_rows(self, count: int) -> None:
        awaited(lambda: len(self.rows()), lambda found: found >= count, lambda: self._wanted(count), WAIT_S)

    def wait_for_letters(self, count: int) -> list[Any]:
        return awaited(self.letters, lambda found: len(found) >= count, lambda: self._wanted(count), WAIT_S)

    def _wanted(self, count: int) -> str:
        return f"{count} of them\n{self.headrace('logs', self.name)}"

    def kill(self, victim: str) -> None:
        worker = self.worker()
        if victim == "broker":
            self.broker.kill()
            time.sleep(self.dice.random())
            self.broker.start()
        elif victim == "supervisor":  # the worker outlives it for a moment, beside the one of the next start
            os.kill(self.status()["process"], signal.SIGKILL)
            until(lambda: self.status()["process"] is None, "the supervisor is known to be gone", WAIT_S)
            self.headrace("start", str(self.file))
        else:
            os.killpg(worker.pid, signal.SIGKILL)

    def check(self) -> None:
        wanted = [row for row in map(reference, self.sent) if row is not None]
        self.wait_for_rows(len(wanted))
        assert sorted(self.rows(), key=lambda row: row["id"]) == wanted
        poison = {str(number): value for number, value in enumerate(self.sent) if reference(value) is None}
        letters = self.wait_for_letters(len(poison))
        assert Counter(dict(one.headers)["number"].decode() for one in letters) == Counter(list(poison))
        assert all(one.value == poison[dict(one.headers)["number"].decode()] for one in letters)
        assert all(one.source_offset == int(dict(one.headers)["number"]) // 2 for one in letters)

    def end(self) -> None:
        self._cluster.close()
        if self.state.exists() and self.status()["process"] is not None:
            self.headrace("stop", self.name)
