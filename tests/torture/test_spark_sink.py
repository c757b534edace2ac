"""A Spark query that copies a topic exactly once, while its driver, its workers and the broker are killed.

Every request of a commit is cut off in turn in tests/integration/test_spark_commits.py; here whole processes die at
moments that nobody chose, and Spark itself does the repeating.
"""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from headrace.client.sync.client import ClientConfig, Cluster
from headrace.client.sync.fetcher import fetch_from
from headrace.client.sync.offsets import LATEST, list_offsets
from headrace.model.ids import TopicPartition
from headrace.records.record import iter_records
from headrace.records.transaction_filter import committed_batches
from headrace.testing import LocalBroker
from tests.torture.plan import KILLS, Dice, kills

ROOT = Path(__file__).parents[2]
PARTITIONS = 2
RECORDS_BETWEEN_KILLS_MAX = 400
# A driver takes ten seconds to start where nothing else runs, and minutes on a machine full of tests.
SECONDS_PER_KILL_MAX = 300
SETTINGS = {"log.segment.bytes": str(1024 * 1024)}
# Two executors, each a JVM of its own, to be killed as well; for the few kills of a test run, three JVMs take too long
# to start. Both have four tries for a task: a worker that is killed costs an attempt, not the query.
MASTER = "local-cluster[2,1,512]" if KILLS else "local[2,4]"
VICTIMS = ("driver", "worker", "broker", *(("executor",) if KILLS else ()))


class Driver:
    """The query's process group: Python, the JVM, and the workers."""

    def __init__(self, bootstrap: str, folder: Path) -> None:
        self._command = [
            sys.executable,
            "-m",
            "tests.torture.spark_driver",
            bootstrap,
            "in",
            "out",
            str(folder / "ckpt"),
            MASTER,
        ]
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

    def kill_one(self, dice: Dice, kind: Callable[[str], bool]) -> bool:
        """One of the processes that the command line shows to be of this kind; False if there is none just now."""
        if self._process is None or self._process.poll() is not None:
            return False
        family = psutil.Process(self._process.pid).children(recursive=True)
        victims = [one for one in family if kind(_command_line(one))]
        dice.shuffle(victims)
        for one in victims:
            with suppress(psutil.NoSuchProcess):  # it has just ended by itself
                one.kill()
                return True
        return False

    def said(self) -> str:
        return self._log.read_text()[-4000:] if self._log.exists() else ""


def _command_line(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""  # it has just ended by itself


def _is_worker(command: str) -> bool:
    """One of the processes in which tasks and commits run."""
    return "pyspark" in command and "java" not in command.split(" ", 1)[0]


def _is_executor(command: str) -> bool:
    return "CoarseGrainedExecutorBackend" in command


class Books:
    """What was sent, and what a reader of committed data can see."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer({"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 2})
        self._cluster = Cluster(ClientConfig(bootstrap=bootstrap, patience_s=60))
        self._positions = {TopicPartition("out", index): 0 for index in range(PARTITIONS)}
        self.sent = 0
        self.seen: Counter[int] = Counter()

    def send(self, count: int) -> None:
        for number in range(self.sent, self.sent + count):
            self._producer.produce("in", key=b"%d" % number, value=b"%d" % number)
        assert self._producer.flush(60) == 0
        self.sent += count

    def look(self) -> None:
        """Read on from where the last look ended, as a consumer would."""
        times = dict.fromkeys(self._positions, LATEST)
        ends = self._cluster.patiently("ends", lambda: list_offsets(self._cluster, times, read_committed=True))
        for place, position in self._positions.items():
            for fetched in fetch_from(
                self._cluster, place, position, ends[place] or 0, read_committed=True, bytes_max=1 << 20
            ):
                for batch, header in committed_batches(fetched.batches, fetched.aborted):
                    rows = iter_records(batch, header)
                    self.seen.update(int(row.value or b"") for row in rows if row.offset >= fetched.position)
                self._positions[place] = fetched.next_position

    def check_no_row_twice(self) -> None:
        assert [number for number, times in self.seen.items() if times > 1] == []

    def close(self) -> None:
        self._cluster.close()


@pytest.mark.timeout(2 * SECONDS_PER_KILL_MAX * (kills(3, times=2) + 1))
def test_every_row_is_copied_once_whoever_dies(dice: Dice, tmp_path: Path) -> None:
    if shutil.which("java") is None:
        pytest.skip("Spark needs Java")
    with LocalBroker(memory=False, settings=SETTINGS) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap})
        for future in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in ("in", "out")]).values():
            future.result(30)
        driver, books = Driver(broker.bootstrap, tmp_path), Books(broker.bootstrap)
        died: Counter[str] = Counter()
        try:
            while died.total() < kills(3, times=2):
                _work(driver, books, dice)
                died[_kill_somebody(driver, broker, dice, died)] += 1
            _finish(driver, books)
        except BaseException:
            print(driver.said())
            raise
        finally:
            driver.kill()
            books.close()
    print(f"{died.total()} kills: {dict(died)}; {books.sent} rows, each once")
    assert books.seen == Counter(range(books.sent))
    assert not KILLS or len(died) == len(VICTIMS)


def _work(driver: Driver, books: Books, dice: Dice) -> None:
    """Let the query come up and write something, for a moment of the dice's choice."""
    driver.start_if_gone()
    books.send(dice.randrange(100, RECORDS_BETWEEN_KILLS_MAX))
    _wait_for(driver, books, books.seen.total() + 1)
    time.sleep(dice.random() * 1.5)


def _kill_somebody(driver: Driver, broker: LocalBroker, dice: Dice, died: Counter[str]) -> str:
    """Those first who have not died yet."""
    victim = dice.choice([name for name in VICTIMS if name not in died] or VICTIMS)
    kinds = {"worker": _is_worker, "executor": _is_executor}
    if victim in kinds and not driver.kill_one(dice, kinds[victim]):
        victim = "driver"
    if victim == "driver":
        driver.kill()
    elif victim == "broker":
        broker.kill()
        time.sleep(dice.random())
        broker.start()
    return victim


def _finish(driver: Driver, books: Books) -> None:
    driver.start_if_gone()
    _wait_for(driver, books, books.sent)
    books.look()


def _wait_for(driver: Driver, books: Books, rows: int) -> None:
    seen, deadline = -1, 0.0
    while books.seen.total() < rows:
        if books.seen.total() > seen:
            seen, deadline = books.seen.total(), time.monotonic() + SECONDS_PER_KILL_MAX
        driver.start_if_gone()
        books.look()
        books.check_no_row_twice()
        assert time.monotonic() < deadline, f"{seen} of {rows} rows, and none more for {SECONDS_PER_KILL_MAX} s"
        time.sleep(0.1)
