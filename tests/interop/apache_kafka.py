"""Apache Kafka as a judge: its jars from Maven Central, its tools as real JVM processes, and a whole broker.

The jars are those of the benchmarks, fetched once into `.cache`. Of headrace it knows only how ports are kept free.
"""

import json
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from bench.tools import kafka_classpath
from headrace.process.sockets import reserve_port
from headrace.testing.local.broker import HOST

# A tool lives for a second or two: compiling beyond C1 and a parallel collector cost more than they save.
SHORT_LIVED_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto", "-Xmx256m")
BROKER_JVM = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xmx512m")
TOOL_SECONDS_MAX = 60.0  # the slowest tool takes about 4 s on a busy machine; past this it hangs
START_SECONDS_MAX = 60.0
CLUSTER_ID = "headrace-judge-0000000"  # any 22 characters of base64
# Two cores: a third JVM starting at the same time only slows the first two down.
TOOLS_AT_ONCE = 2


class ToolFailed(AssertionError):
    """A tool of Apache Kafka ended with an error."""


@dataclass(frozen=True)
class Output:
    text: str
    errors: str

    @property
    def lines(self) -> list[str]:
        return self.text.splitlines()

    @property
    def objects(self) -> list[Any]:
        """What formatters print: JSON objects with nothing between them, or a line's end."""
        decoder, text, found = json.JSONDecoder(), self.text.strip(), []
        while text:
            one, end = decoder.raw_decode(text)
            found.append(one)
            text = text[end:].lstrip()
        return found


def tool(main_class: str, *arguments: str, stdin: bytes | None = None, timeout: float = TOOL_SECONDS_MAX) -> Output:
    """One run of a command-line tool, in a JVM of its own; its output, or ToolFailed with all it said."""
    command = ["java", *SHORT_LIVED_JVM, "-cp", kafka_classpath(), main_class, *arguments]
    done = subprocess.run(command, input=stdin if stdin is not None else b"", capture_output=True, timeout=timeout)
    output = Output(done.stdout.decode(), done.stderr.decode())
    # Several tools print their stack trace and end with 0.
    if done.returncode != 0 or "Exception in thread" in output.errors:
        raise ToolFailed(f"{main_class} {' '.join(arguments)}\n{output.text}\n{output.errors}")
    return output


def tools(commands: Sequence[Sequence[str]]) -> list[Output]:
    """Independent runs, two at a time; outputs in the order of the commands."""
    with ThreadPoolExecutor(TOOLS_AT_ONCE) as pool:
        return list(pool.map(lambda command: tool(*command), commands))


class ApacheKafka:
    """One node of Apache Kafka (KRaft, combined mode) on a fresh folder, for as long as a `with` block lasts."""

    def __init__(self, folder: Path, settings: Mapping[str, str] | None = None) -> None:
        self.log_dir = folder / "kafka-logs"
        self._folder = folder
        self._output = folder / "kafka.out"
        self._overrides = dict(settings or {})
        # Ports for clients and for the controller, from start to `close`. Java's servers can bind beside them on Linux.
        self._reservations: list[socket.socket] = []
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return self._address(0)

    def _address(self, which: int) -> str:
        return f"{HOST}:{self._reservations[which].getsockname()[1]}"

    def _settings(self) -> dict[str, str]:
        controller = self._address(1)
        defaults = {
            "process.roles": "broker,controller",
            "node.id": "0",
            "controller.quorum.voters": f"0@{controller}",
            "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
            "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
            "log.dirs": str(self.log_dir),
            "offsets.topic.replication.factor": "1",
            "offsets.topic.num.partitions": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "transaction.state.log.num.partitions": "1",
            "group.initial.rebalance.delay.ms": "0",
        }
        return defaults | self._overrides

    def _start(self) -> None:
        self._reservations = [reserve_port(0), reserve_port(0)]
        properties = self._folder / "server.properties"
        properties.write_text("".join(f"{key}={value}\n" for key, value in self._settings().items()))
        if not (self.log_dir / "meta.properties").exists():
            tool("kafka.tools.StorageTool", "format", "-t", CLUSTER_ID, "-c", str(properties))
        command = ["java", *BROKER_JVM, "-cp", kafka_classpath(), "kafka.Kafka", str(properties)]
        with self._output.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output, cwd=self._folder)
        self._wait_until_serving()

    def _wait_until_serving(self) -> None:
        # The client retries by itself until the broker answers, so that there is nothing to sleep for here.
        try:
            AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0}).list_topics(timeout=START_SECONDS_MAX)
        except KafkaException as error:
            raise RuntimeError(f"Apache Kafka did not start:\n{self._output.read_text()}") from error

    def close(self) -> None:
        """A clean shutdown, and the ports given back."""
        try:
            self._stop()
        finally:
            for one in self._reservations:
                one.close()
            self._reservations = []

    def _stop(self) -> None:
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(START_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
            raise
        finally:
            self._process = None

    def __enter__(self) -> "ApacheKafka":
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
