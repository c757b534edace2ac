"""Apache Kafka as the peer: KRaft nodes with the distribution's own settings and a heap of 1 GB each."""

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
        settings = {
            **self.node_settings(1, controller_port := free_port()),
            "controller.quorum.bootstrap.servers": f"127.0.0.1:{controller_port}",
            # One node cannot hold the three replicas that the internal topics want by default.
            "offsets.topic.replication.factor": "1",
            "transaction.state.log.replication.factor": "1",
            "transaction.state.log.min.isr": "1",
            "share.coordinator.state.topic.replication.factor": "1",
            "share.coordinator.state.topic.min.isr": "1",
            **self.settings,
        }
        self.format(settings, "--standalone", "-t", random_id())

    def node_settings(self, node_id: int, controller_port: int) -> dict[str, str]:
        """A broker that is a controller too, and where both listen."""
        return {
            "process.roles": "broker,controller",
            "node.id": str(node_id),
            "listeners": f"PLAINTEXT://127.0.0.1:{self.port},CONTROLLER://127.0.0.1:{controller_port}",
            "advertised.listeners": f"PLAINTEXT://127.0.0.1:{self.port}",
            "inter.broker.listener.name": "PLAINTEXT",
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": str(self.home / "data"),
        }

    def format(self, settings: Mapping[str, str], *options: str) -> None:
        """Write the settings down and make the data directory, which Kafka wants done before its first start."""
        self._properties.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
        command = [*java(), "kafka.tools.StorageTool", "format", *options, "-c", str(self._properties)]
        self._processes.run(command, log=self.log, timeout_s=_FORMAT_TIMEOUT_S)

    def command(self) -> list[str]:
        return [*java(*JVM_OPTIONS), "kafka.Kafka", str(self._properties)]

    @property
    def _properties(self) -> Path:
        return self.home / "server.properties"


def random_id() -> str:
    """Kafka's base64 of a random UUID. One that begins with a dash would be taken for an option."""
    while (text := base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")).startswith("-"):
        pass
    return text


def java(*options: str) -> list[str]:
    """A JVM that knows Kafka's jars."""
    return ["java", *options, "-cp", tools.kafka_classpath()]
