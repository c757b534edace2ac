"""Apache Kafka as the peer: one KRaft node with the distribution's own settings and a heap of 1 GB."""

import base64
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from bench import tools
from bench.brokers import Broker, Policy, free_port

# What Kafka's start scripts give the JVM.
JVM_OPTIONS = [
    "-Xmx1G",
    "-Xms1G",
    "-server",
    "-XX:+UseG1GC",
    "-XX:MaxGCPauseMillis=20",
    "-XX:InitiatingHeapOccupancyPercent=35",
    "-XX:+ExplicitGCInvokesConcurrent",
    "-XX:MaxInlineLevel=15",
    "-Djava.awt.headless=true",
]
_FORMAT_TIMEOUT_S = 120.0


class Kafka(Broker):
    kind = "kafka"
    policies: ClassVar[Mapping[Policy, Mapping[str, str]]] = {
        Policy.PAGE_CACHE: {},
        Policy.FSYNC: {"flush.messages": "1"},
    }
    node_policies: ClassVar[Mapping[Policy, Mapping[str, str]]] = {
        Policy.PAGE_CACHE: {},
        Policy.FSYNC: {"log.flush.interval.messages": "1"},
    }

    def prepare(self) -> None:
        controller_port = free_port()
        settings = {
            "process.roles": "broker,controller",
            "node.id": "1",
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.home / "data"),
            # One node cannot hold the three replicas that the internal topics want by default.
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            **self.settings,
        }
        lines = "".join(f"{key}={value}\n" for key, value in settings.items())
        self._properties.write_text(lines)
        storage_tool = ["kafka.tools.StorageTool", "format", "--standalone", "-t", _cluster_id()]
        command = [*java(), *storage_tool, "-c", str(self._properties)]
        self._processes.run(command, log=self.log, timeout_s=_FORMAT_TIMEOUT_S)

    def command(self) -> list[str]:
        return [*java(*JVM_OPTIONS), "kafka.Kafka", str(self._properties)]

    @property
    def _properties(self) -> Path:
        return self.home / "server.properties"


def _cluster_id() -> str:
    """Kafka's base64 of a random UUID. One that begins with a dash would be taken for an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def java(*options: str) -> list[str]:
    """A JVM that knows Kafka's jars."""
    return ["java", *options, "-cp", tools.kafka_classpath()]
