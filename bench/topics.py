"""Topics made and removed through the admin API, the same way on every broker."""

import socket
import struct
import time
from collections.abc import Mapping, Sequence

from confluent_kafka import KafkaException
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
)
from confluent_kafka.cimpl import NewTopic

from bench.processes import BenchError

ADMIN_TIMEOUT_S = 120.0  # a thousand partitions at a time on a busy machine
JOIN_GROUP = 11  # the API key without which no client can be a member of a group
_PROBE_TIMEOUT_S = 2.0
_POLL_S = 0.05


def _admin(bootstrap: str) -> AdminClient:
    return AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})


def answers(bootstrap: str) -> bool:
    """Whether the broker serves clients and knows itself. Asks for no topic: there may be thousands."""
    admin = _admin(bootstrap)  # held by a name until the answer is there: a collected client answers nothing
    try:
        return bool(admin.describe_cluster(request_timeout=_PROBE_TIMEOUT_S).result(_PROBE_TIMEOUT_S).nodes)
    except (KafkaException, TimeoutError):
        return False


def create(
    bootstrap: str, names: Sequence[str], partitions: int, configs: Mapping[str, str], replicas: int = 1
) -> None:
    """Create the topics one after the other and wait until they can be used."""
    admin = _admin(bootstrap)
    for name in names:
        topic = NewTopic(name, num_partitions=partitions, replication_factor=replicas, config=dict(configs))
        try:
            admin.create_topics([topic], request_timeout=ADMIN_TIMEOUT_S)[name].result(ADMIN_TIMEOUT_S)
        except (KafkaException, TimeoutError) as refused:
            raise BenchError(f"topic {name} with {partitions} partitions was not created: {refused}") from refused
    wait_until_whole(bootstrap, names, partitions, replicas)


def alter(bootstrap: str, name: str, configs: Mapping[str, str]) -> None:
    entries = [ConfigEntry(key, value, incremental_operation=AlterConfigOpType.SET) for key, value in configs.items()]
    resource = ConfigResource(ConfigResource.Type.TOPIC, name, incremental_configs=entries)
    admin = _admin(bootstrap)
    try:
        admin.incremental_alter_configs([resource])[resource].result(ADMIN_TIMEOUT_S)
    except (KafkaException, TimeoutError) as refused:
        raise BenchError(f"the configs of topic {name} were not altered: {refused}") from refused


def wait_until_whole(bootstrap: str, names: Sequence[str], partitions: int, replicas: int) -> None:
    """Until every partition has a leader, and all its replicas in sync."""
    admin = _admin(bootstrap)
    deadline = time.monotonic() + ADMIN_TIMEOUT_S
    while not all(_is_whole(admin, name, partitions, replicas) for name in names):
        if time.monotonic() > deadline:
            missing = "a leader or a replica in sync"
            raise BenchError(f"{', '.join(names)}: partitions without {missing} after {ADMIN_TIMEOUT_S:.0f} s")
        time.sleep(_POLL_S)


def _is_whole(admin: AdminClient, name: str, partitions: int, replicas: int) -> bool:
    known = _leaders(admin, name)
    return len(known) == partitions and all(leader >= 0 and in_sync == replicas for leader, in_sync in known)


def _leaders(admin: AdminClient, name: str) -> list[tuple[int, int]]:
    """Who leads each partition, and how many replicas are in sync with it."""
    try:
        known = admin.list_topics(name, timeout=ADMIN_TIMEOUT_S).topics[name].partitions
    except KafkaException as failed:
        raise BenchError(f"no metadata for topic {name}: {failed}") from failed
    return [(known[index].leader, len(known[index].isrs)) for index in sorted(known)]


def wait_for_leader_other_than(gone: int, bootstrap: str, name: str) -> None:
    deadline = time.monotonic() + ADMIN_TIMEOUT_S
    while leader(bootstrap, name) in (gone, -1):
        if time.monotonic() > deadline:
            raise BenchError(f"topic {name}: no new leader {ADMIN_TIMEOUT_S:.0f} s after node {gone} stopped")
        time.sleep(_POLL_S)


def leader(bootstrap: str, name: str) -> int:
    """Who leads partition 0; -1 while nobody does."""
    leader, _ = _leaders(_admin(bootstrap), name)[0]
    return leader


def delete(bootstrap: str, names: Sequence[str]) -> None:
    """Delete the topics; a broker that cannot do so any more is found out by the next sample."""
    admin = _admin(bootstrap)
    for future in admin.delete_topics(list(names), request_timeout=ADMIN_TIMEOUT_S).values():
        try:
            future.result(ADMIN_TIMEOUT_S)
        except (KafkaException, TimeoutError):
            return


def serves(bootstrap: str, api_key: int) -> bool:
    """Whether the broker lists an API in its ApiVersions (version 0, the one every broker answers)."""
    host, _, port = bootstrap.rpartition(":")
    request = struct.pack(">hhih5s", 18, 0, 1, 5, b"bench")
    try:
        with socket.create_connection((host, int(port)), timeout=_PROBE_TIMEOUT_S) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            reader = connection.makefile("rb")
            (length,) = struct.unpack(">i", reader.read(4))
            body = reader.read(length)
    except (OSError, struct.error) as failed:
        raise BenchError(f"{bootstrap} does not respond to ApiVersions: {failed}") from failed
    _, _, count = struct.unpack_from(">ihi", body)
    keys = (struct.unpack_from(">h", body, 10 + 6 * i)[0] for i in range(count))
    return api_key in keys
