"""The clients that drive both brokers alike: our C programs, and Kafka's own performance tools."""

import json
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path

from bench import tools
from bench.brokers import Broker, Served
from bench.kafka import java
from bench.processes import BenchError, Process, Processes, tail

LOAD_LIMIT_S = 300.0  # no sample takes a minute; one that takes five has failed
_LIMIT_MARGIN_S = 30.0
_SETTLING = 100  # messages of a steady load until its client has found everybody
_TOOL_JVM = "-Xmx512M"  # as Kafka's run script gives its tools

Figures = Mapping[str, float]


class Clients:
    """Runs clients and returns their figures. Owns no broker."""

    def __init__(self, processes: Processes, log: Path) -> None:
        self._processes = processes
        self._log = log

    def load(self, mode: str, broker: Served, topic: str, conf: Mapping[str, str], /, **keys: int) -> Figures:
        """Run load.c to its end."""
        command = self._load_command(mode, broker, topic, conf, keys)
        output = self._processes.run(command, log=self._log, timeout_s=LOAD_LIMIT_S + _LIMIT_MARGIN_S)
        return _figures(output)

    def steady(self, broker: Served, topic: str, conf: Mapping[str, str], rate: int) -> "SteadyLoad":
        """load.c at a fixed rate until it is told that it is enough."""
        command = self._load_command(
            "latency", broker, topic, conf, {"rate": rate, "count": int(rate * LOAD_LIMIT_S), "skip": _SETTLING}
        )
        return SteadyLoad(self._processes, self._processes.start(command, log=self._log, stdout=subprocess.PIPE))

    def waiting_producer(self, broker: Served, topic: str) -> Process:
        """A producer that knocks at the broker's port every millisecond; give it to `acked_at` afterwards."""
        # The clients' usual patience (100 ms and more between attempts) would measure the client.
        conf = {
            "topic.metadata.refresh.fast.interval.ms": "5",
            "retry.backoff.ms": "5",
            "reconnect.backoff.ms": "5",
        }
        conf |= {
            "reconnect.backoff.max.ms": "10",
            "linger.ms": "0",
            "acks": "all",
            "allow.auto.create.topics": "true",
        }
        command = self._load_command("first", broker, topic, conf, {})
        return self._processes.start(command, log=self._log, stdout=subprocess.PIPE)

    def acked_at(self, producer: Process) -> float:
        """When the waiting producer got its ack, as time.monotonic() counts."""
        try:
            output, _ = producer.communicate(timeout=LOAD_LIMIT_S)
        except subprocess.TimeoutExpired as expired:
            raise BenchError("the first record was never acked") from expired
        finally:
            self._processes.kill(producer)
        figures = _figures(output.decode())
        if not figures["acked"]:
            raise BenchError("the first record was not delivered")
        return figures["seconds"]

    def hold_connections(self, broker: Broker, topic: str, connections: int, requests: int) -> "HeldConnections":
        command = [str(tools.program("connections")), "127.0.0.1", str(broker.port), topic]
        command += [str(connections), str(requests)]
        pipe = subprocess.PIPE
        return HeldConnections(self._processes, self._processes.start(command, log=self._log, stdin=pipe, stdout=pipe))

    def members(self, broker: Broker, topic: str, /, **keys: int) -> Figures:
        """Run members.c to its end."""
        command = [str(tools.program("members")), f"brokers={broker.bootstrap}", f"topic={topic}", f"pid={broker.pid}"]
        command += [f"{key}={value}" for key, value in keys.items()]
        return _figures(self._processes.run(command, log=self._log, timeout_s=LOAD_LIMIT_S + _LIMIT_MARGIN_S))

    def fill_offsets(self, broker: Broker, topic: str, /, **keys: int) -> Figures:
        command = self._offsets_command("fill", broker, topic, keys)
        return _figures(self._processes.run(command, log=self._log, timeout_s=LOAD_LIMIT_S))

    def waiting_for_offsets(self, broker: Broker, topic: str, /, **keys: int) -> Process:
        """A client that knocks at the broker's port and asks for all groups; give it to `found_at` afterwards."""
        command = self._offsets_command("fetch", broker, topic, keys)
        return self._processes.start(command, log=self._log, stdout=subprocess.PIPE)

    def found_at(self, client: Process) -> Figures:
        """When it got the first group's offset and when the last one's, as time.monotonic() counts."""
        try:
            output, _ = client.communicate(timeout=LOAD_LIMIT_S)
        except subprocess.TimeoutExpired as expired:
            raise BenchError("no response with the committed offsets") from expired
        finally:
            self._processes.kill(client)
        if client.returncode:
            raise BenchError(f"the request for committed offsets failed: {tail(self._log)}")
        return _figures(output.decode())

    @staticmethod
    def _offsets_command(mode: str, broker: Broker, topic: str, keys: Mapping[str, int]) -> list[str]:
        command = [str(tools.program("offsets")), mode, f"brokers={broker.bootstrap}", f"topic={topic}"]
        return command + [f"{key}={value}" for key, value in keys.items()]

    def java_produce(self, broker: Broker, topic: str, records: int, conf: Mapping[str, str]) -> float:
        """Records a second by Kafka's ProducerPerformance."""
        command = [*java(_TOOL_JVM), "org.apache.kafka.tools.ProducerPerformance", "--topic", topic]
        command += ["--num-records", str(records), "--record-size", "100", "--throughput", "-1"]
        command += ["--bootstrap-server", broker.bootstrap, "--command-property"]
        command += [f"{key}={value}" for key, value in conf.items()]
        output = self._processes.run(command, log=self._log, timeout_s=LOAD_LIMIT_S)
        # The last line is the total; the lines before it are one per reporting interval.
        found = re.findall(r"(\d+) records sent, ([\d.,]+) records/sec", output)
        if not found or int(found[-1][0]) != records:
            raise BenchError(f"ProducerPerformance did not send {records} records: {output[-500:]}")
        return float(found[-1][1].replace(",", "."))

    def java_consume(self, broker: Broker, topic: str, records: int) -> float:
        """Records a second by Kafka's ConsumerPerformance, the time to join its group not counted."""
        command = [*java(_TOOL_JVM), "org.apache.kafka.tools.ConsumerPerformance", "--topic", topic]
        command += [
            "--num-records",
            str(records),
            "--bootstrap-server",
            broker.bootstrap,
            "--timeout",
            "30000",
        ]
        output = self._processes.run(command, log=self._log, timeout_s=LOAD_LIMIT_S)
        header, *lines = [line for line in output.splitlines() if line.count(",") >= 9] or [""]
        if not lines:
            raise BenchError(f"ConsumerPerformance printed no result: {output[-500:]}")
        columns = dict(zip((name.strip() for name in header.split(",")), lines[-1].split(","), strict=False))
        if int(columns["data.consumed.in.nMsg"]) < records:
            raise BenchError(f"ConsumerPerformance got only {columns['data.consumed.in.nMsg'].strip()} records")
        return float(columns["fetch.nMsg.sec"])

    def _load_command(
        self, mode: str, broker: Served, topic: str, conf: Mapping[str, str], keys: Mapping[str, int]
    ) -> list[str]:
        command = [str(tools.program("load")), mode, f"brokers={broker.bootstrap}", f"topic={topic}"]
        command += [f"limit_s={LOAD_LIMIT_S:.0f}"]
        command += [f"{key}={value}" for key, value in keys.items()]
        return command + [f"conf.{key}={value}" for key, value in conf.items()]


class SteadyLoad:
    """Records produced and consumed at a fixed rate while the context is open; its figures are there afterwards."""

    def __init__(self, processes: Processes, process: Process) -> None:
        self._processes = processes
        self._process = process
        self.figures: Figures = {}

    def __enter__(self) -> "SteadyLoad":
        return self

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        try:
            if kind is None:
                self._process.terminate()
                output, _ = self._process.communicate(timeout=LOAD_LIMIT_S)
                self.figures = _figures(output.decode())
        except subprocess.TimeoutExpired as expired:
            raise BenchError(
                "the steady load did not end: some of its records were never acked or received"
            ) from expired
        finally:
            self._processes.kill(self._process)


class HeldConnections:
    """Connections that have done their requests and stay open until the context is left."""

    def __init__(self, processes: Processes, process: Process) -> None:
        self._processes = processes
        self._process = process
        self.figures: Figures = {}

    def __enter__(self) -> "HeldConnections":
        assert self._process.stdout is not None, "started with a pipe"
        line = self._process.stdout.readline().decode()
        if not line:
            self._processes.kill(self._process)
            raise BenchError("connections: the client failed before its last response")
        self.figures = _figures(line)
        return self

    def __exit__(self, *_: object) -> None:
        self._processes.kill(self._process)


def _figures(output: str) -> Figures:
    figures: dict[str, float] = json.loads(output)
    if figures["failed"]:
        raise BenchError(f"{figures['failed']:.0f} messages were not delivered")
    return figures
