"""Brokers and etcd members, each a process on a machine of its own, to be killed, paused, cut off and filled up.

Decides addresses, folders and settings, and who is asked about the state of things. Brokers are numbered from 1;
their machines are called b1, b2, … and e1, e2, e3.
"""

import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from types import TracebackType

import yaml
from confluent_kafka.admin import AdminClient

from headrace.testing.local.small_disk import fill_disk, free_disk
from headrace.testing.local.suspend import resume, suspend
from tests.integration.told import told_by
from tests.patience import awaited
from tests.torture.netns import Wire

ETCD_MEMBERS = ("e1", "e2", "e3")
START_SECONDS_MAX = 60.0
COMMAND_SECONDS_MAX = 300.0  # of one that waits for replicas to move, on a machine that has other things to do
DISK_BYTES = 256 * 1024 * 1024
OUTPUT_SHOWN_BYTES = 4000


class WiredCluster:
    def __init__(self, folder: Path, brokers: int, settings: Mapping[str, str]) -> None:
        self._folder = folder
        self._settings = dict(settings)
        self.wire = Wire([*(f"b{number}" for number in range(1, brokers + 1)), *ETCD_MEMBERS])
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._admin: AdminClient | None = None

    # Processes

    def start_etcd(self, names: Iterable[str] = ETCD_MEMBERS) -> None:
        everybody = ",".join(f"{name}=http://{self.wire.address(name)}:2380" for name in ETCD_MEMBERS)
        for name in names:
            if self.is_running(name):
                continue
            clients, peers = (f"http://{self.wire.address(name)}:{port}" for port in (2379, 2380))
            command = ["etcd", "--name", name, "--data-dir", str(self._folder / name)]
            command += ["--listen-client-urls", clients, "--advertise-client-urls", clients]
            command += ["--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
            command += ["--initial-cluster", everybody, "--heartbeat-interval", "50", "--election-timeout", "500"]
            self._spawn(name, command)

    def start_broker(self, *numbers: int) -> None:
        """Returns when they serve; those that run already are left alone."""
        served = {number: self._times_served(number) for number in numbers if not self.is_running(f"b{number}")}
        for number in served:
            self.launch_broker(number)
        deadline = time.monotonic() + START_SECONDS_MAX
        for number in served:
            while self._times_served(number) == served[number]:
                if not self.is_running(f"b{number}"):
                    self.launch_broker(number)  # as a supervisor does: its etcd may not have been there yet
                assert time.monotonic() < deadline, f"broker {number} serves:\n{self.output(f'b{number}')}"
                time.sleep(0.1)

    def launch_broker(self, number: int) -> None:
        config = self._folder / f"node{number}.yaml"
        self._spawn(f"b{number}", [sys.executable, "-P", "-m", "headrace.cli.main", "start", "--config", str(config)])

    def _spawn(self, name: str, command: list[str]) -> None:
        with self._log(name).open("ab") as output:
            self._processes[name] = self.wire.popen(name, command, output)

    def is_running(self, name: str) -> bool:
        return name in self._processes and self._processes[name].poll() is None

    def _times_served(self, number: int) -> int:
        log = self._log(f"b{number}")
        return log.read_bytes().count(b" serves ") if log.exists() else 0

    def headrace(self, *words: str) -> None:
        """`headrace cluster …`, as an administrator types it, and again if a broker was away just then."""
        command = [sys.executable, "-P", "-m", "headrace.cli.main", "cluster", *words, "--bootstrap", self.bootstrap]
        deadline = time.monotonic() + START_SECONDS_MAX
        while (done := subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX)).returncode:
            assert time.monotonic() < deadline, done

    def kill(self, *names: str) -> None:
        """SIGKILL, of all of them that run before any is waited for."""
        victims = [self._processes.pop(name) for name in names if name in self._processes]
        for victim in victims:
            victim.kill()
        for victim in victims:
            victim.wait()

    def stop(self, name: str) -> None:
        process = self._processes.pop(name)
        process.terminate()
        process.wait(START_SECONDS_MAX)

    def pause(self, name: str) -> None:
        if self.is_running(name):
            suspend(self._processes[name].pid)

    def resume(self, name: str) -> None:
        """One that was killed meanwhile stays dead."""
        if self.is_running(name):
            resume(self._processes[name].pid)

    # Disks

    def fill_disk(self, number: int) -> None:
        fill_disk(self.wire.inside(f"b{number}", str(self._disk(number))))

    def free_disk(self, number: int) -> None:
        free_disk(self.wire.inside(f"b{number}", str(self._disk(number))))

    def _disk(self, number: int) -> Path:
        return self._folder / f"disk{number}"

    # Asking

    def address(self, number: int) -> str:
        return f"{self.wire.address(f'b{number}')}:9092"

    @property
    def bootstrap(self) -> str:
        return ",".join(self.address(number) for number in (1, 2, 3))

    @property
    def admin(self) -> AdminClient:
        if self._admin is None:
            self._admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0, "socket.timeout.ms": 3000})
        return self._admin

    def leader(self, topic: str, partition: int) -> int:
        leader: int = self.admin.list_topics(topic, timeout=10).topics[topic].partitions[partition].leader
        return leader

    def controller(self) -> int:
        number: int = self.admin.list_topics(timeout=10).controller_id
        return number

    def wait_until_well(self, topics: Sequence[str], seconds_max: float) -> float:
        """Until every broker knows of a leader and a full ISR for every partition; returns how long it took."""
        began = time.monotonic()
        awaited(lambda: self._trouble(topics), lambda trouble: trouble is None, "all is well again", seconds_max)
        return time.monotonic() - began

    def _trouble(self, topics: Sequence[str]) -> str | None:
        """What a broker says that is not well. Each is asked by itself: one that was away may not know yet."""
        for number, topic in product((1, 2, 3), topics):
            try:
                told = told_by(self.wire.address(f"b{number}"), 9092, topic)
            except OSError as error:
                return f"broker {number}: {error}"
            if len(told.brokers) < 3 or not told.partitions:
                return f"broker {number} knows {list(told.brokers)} and {len(told.partitions)} partitions of {topic}"
            for index, one in enumerate(told.partitions):
                if one.leader < 0 or len(one.isr) < len(one.replicas):
                    return f"broker {number} says of {topic} {index}: {one}"
        return None

    def output(self, name: str) -> str:
        return self._log(name).read_text(errors="replace")[-OUTPUT_SHOWN_BYTES:]

    def _log(self, name: str) -> Path:
        return self._folder / f"{name}.log"

    # Beginning and end

    def start(self) -> None:
        self.wire.__enter__()
        brokers = [int(name[1:]) for name in self.wire.names if name.startswith("b")]
        for number in brokers:
            self._disk(number).mkdir()
            self.wire.give_disk(f"b{number}", str(self._disk(number)), DISK_BYTES)
            (self._folder / f"node{number}.yaml").write_text(yaml.safe_dump(self._config(number)))
        self.start_etcd()
        self.start_broker(1, 2, 3)

    def _config(self, number: int) -> dict[str, object]:
        endpoints = ",".join(f"{self.wire.address(name)}:2379" for name in ETCD_MEMBERS)
        return {
            "node_id": number,
            "api_addr": self.address(number),
            "storage_path": str(self._disk(number) / "data"),
            "metadata": f"etcd://{endpoints}",
            "gateway": {"enabled": False},
            **self._settings,
        }

    def close(self) -> None:
        for process in self._processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()
        self._processes = {}
        self.wire.close()

    def __enter__(self) -> "WiredCluster":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            for name in self.wire.names:
                if name.startswith("b") and self._log(name).exists():
                    error.add_note(f"--- last words of {name} ---\n{self.output(name)}")
        self.close()
