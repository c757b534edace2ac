"""Kafka's verifiable producer and consumer: each says in JSON what became of every record."""

from pathlib import Path

from bench.tools import kafka_classpath
from tests.interop.background import Background

TOOLS = "org.apache.kafka.tools."
SENT, NOT_SENT, RECEIVED = "producer_send_success", "producer_send_error", "record_data"


def producer(bootstrap: str, topic: str, folder: Path, *, a_second: int, messages: int = -1) -> Background:
    """Sends so many messages, or until it is terminated."""
    # By itself the tool never tries again, and reports what met a broker's absence as lost; Kafka's clients do.
    patient = folder / "producer.properties"
    patient.write_text("retries=2147483647\nenable.idempotence=true\n")
    arguments = ["--topic", topic, "--acks", "-1", "--max-messages", str(messages), "--throughput", str(a_second)]
    arguments += ["--repeating-keys", "100", "--command-config", str(patient)]  # keys: every partition gets some
    return Background(kafka_classpath(), TOOLS + "VerifiableProducer", "--bootstrap-server", bootstrap, *arguments)


def consumer(bootstrap: str, topic: str, group: str, protocol: str = "classic") -> Background:
    arguments = ["--topic", topic, "--group-id", group, "--group-protocol", protocol, "--verbose"]
    if protocol == "classic":
        arguments += ["--session-timeout", "6000"]
    return Background(kafka_classpath(), TOOLS + "VerifiableConsumer", "--bootstrap-server", bootstrap, *arguments)


def values(of: Background, event: str) -> list[str]:
    return [one["value"] for one in of.events if one["name"] == event]


def holds(member: Background) -> set[int]:
    """The partitions that it was given and did not give back."""
    held: set[int] = set()
    for one in member.events:
        rows = {row["partition"] for row in one.get("partitions", []) if "partition" in row}
        if one["name"] == "partitions_assigned":
            held |= rows
        elif one["name"] in ("partitions_revoked", "partitions_lost"):
            held -= rows
    return held


def wait_for_more(of: Background, event: str = RECEIVED) -> None:
    known = len(values(of, event))
    of.wait_for(lambda: len(values(of, event)) > known)
