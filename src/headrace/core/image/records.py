"""Keys and values of metadata records in the metadata store: one key per record, values in JSON.

    /headrace/cluster                         {"id"}
    /headrace/controller                      {"node"}              leased; its version is the controller epoch
    /headrace/brokers/<node id>               {"endpoints", "rack", "directory", "incarnation"}
    /headrace/sessions/<node id>              {"stopping", "full", "lease"} leased: deleted when the session expires
    /headrace/topics/<name>                   {"id", "configs", "former"}
    /headrace/partitions/<topic id>/<block>   [[leader, leader epoch, partition epoch, replicas, isr,
                                                elr, last leader, adding, removing, lost], …]
    /headrace/deleted/<name>                  {"id", "leader_epoch", "deleted_ms", "former"}
    /headrace/leader-epoch-floor              {"epoch"}
    /headrace/configs/brokers/<node id|default>   {name: value}
    /headrace/configs/groups/<group id>       {name: value}
    /headrace/producer-ids                    {"next"}
    /headrace/placements                      {}    written whenever replicas are assigned to brokers
    /headrace/unregistrations                 {}    written whenever a broker is unregistered
    /headrace/names/<collision name>          {"topic"}   of topics with a dot or an underscore in their name

Partition states are stored in blocks, so that a new leader for one partition rewrites a few kilobytes and not the
whole of a large topic, and so that the largest topic still fits into one commit. Trailing empty fields of a state are
left out. Readers ignore unknown JSON fields, so that fields can be added.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from uuid import UUID

from headrace.config.settings import Listener
from headrace.core.image.model import NO_LEADER, BrokerRegistration, PartitionRegistration, Tombstone
from headrace.core.topic import unify_collision_chars

ROOT = "/headrace/"
CLUSTER = ROOT + "cluster"
CONTROLLER = ROOT + "controller"
PRODUCER_IDS = ROOT + "producer-ids"
PLACEMENTS = ROOT + "placements"
UNREGISTRATIONS = ROOT + "unregistrations"
NAMES = ROOT + "names/"
LEADER_EPOCH_FLOOR = ROOT + "leader-epoch-floor"
BROKERS = ROOT + "brokers/"
SESSIONS = ROOT + "sessions/"
TOPICS = ROOT + "topics/"
PARTITIONS = ROOT + "partitions/"
DELETED = ROOT + "deleted/"
BROKER_CONFIGS = ROOT + "configs/brokers/"
GROUP_CONFIGS = ROOT + "configs/groups/"
_FAMILIES = (TOPICS, PARTITIONS, DELETED, BROKERS, SESSIONS, BROKER_CONFIGS, GROUP_CONFIGS, NAMES)
_CLUSTER_DEFAULT = "default"  # a key must not have an empty last part

# 100 states take about 3 KB: small enough to rewrite for one partition, large enough that ten thousand
# partitions are a hundred keys, which is what one commit can hold.
PARTITIONS_PER_BLOCK = 100


class TopicRecord(NamedTuple):
    topic_id: UUID
    configs: dict[str, str]
    former_ids: tuple[UUID, ...]


def split_key(key: str) -> tuple[str, str]:
    """Returns a key's prefix and the name within it. A key without a name is its own prefix."""
    for family in _FAMILIES:
        if key.startswith(family):
            return family, key[len(family) :]
    return key, ""


def topic_key(name: str) -> str:
    return TOPICS + name


def name_keys(topic: str) -> tuple[str, ...]:
    """Returns the key that topics with colliding names share; none if no other name can collide with this one."""
    return (NAMES + unify_collision_chars(topic),) if "." in topic or "_" in topic else ()


def deleted_key(name: str) -> str:
    return DELETED + name


def broker_key(node_id: int) -> str:
    return f"{BROKERS}{node_id}"


def session_key(node_id: int) -> str:
    return f"{SESSIONS}{node_id}"


def broker_configs_key(broker: str) -> str:
    """Returns the key of a broker's configs. `broker` is a node id as text, or '' for the cluster-wide default."""
    return BROKER_CONFIGS + (broker or _CLUSTER_DEFAULT)


def group_configs_key(group_id: str) -> str:
    return GROUP_CONFIGS + group_id


def broker_of_configs(name: str) -> str:
    return "" if name == _CLUSTER_DEFAULT else name


def block_key(topic_id: UUID, block: int) -> str:
    return f"{PARTITIONS}{topic_id.hex}/{block}"


def split_block(name: str) -> tuple[UUID, int]:
    topic_id, _, block = name.partition("/")
    return UUID(topic_id), int(block)


def block_keys(topic_id: UUID, partition_count: int) -> list[str]:
    """Returns the keys of all partition blocks of a topic."""
    return [block_key(topic_id, block) for block in range(-(-partition_count // PARTITIONS_PER_BLOCK))]


def block_writes(
    topic_id: UUID, partitions: Sequence[PartitionRegistration], changed: Iterable[int]
) -> dict[str, bytes]:
    """Returns the writes for the blocks that contain the changed partitions."""
    writes = {}
    for block in sorted({index // PARTITIONS_PER_BLOCK for index in changed}):
        start = block * PARTITIONS_PER_BLOCK
        states = partitions[start : start + PARTITIONS_PER_BLOCK]
        writes[block_key(topic_id, block)] = _encode([_row(state) for state in states])
    return writes


def _row(state: PartitionRegistration) -> list[Any]:
    row = [state.leader, state.leader_epoch, state.partition_epoch, state.replicas, state.isr]
    if state[len(row) :] != _USUAL_END:
        row += state[len(row) :]
    return row


_USUAL_END = PartitionRegistration((), (), NO_LEADER, 0, 0)[5:]


def decode_block(value: bytes) -> list[PartitionRegistration]:
    return [_state(*row) for row in json.loads(value)]


def _state(
    leader: int,
    leader_epoch: int,
    partition_epoch: int,
    replicas: list[int],
    isr: list[int],
    elr: Sequence[int] = (),
    last_leader: int = NO_LEADER,
    adding: Sequence[int] = (),
    removing: Sequence[int] = (),
    lost: Sequence[int] = (),
    *_: object,
) -> PartitionRegistration:
    return PartitionRegistration(
        tuple(replicas),
        tuple(isr),
        leader,
        leader_epoch,
        partition_epoch,
        tuple(elr),
        last_leader,
        tuple(adding),
        tuple(removing),
        tuple(lost),
    )


def encode_topic(topic_id: UUID, configs: Mapping[str, str], former_ids: Iterable[UUID] = ()) -> bytes:
    return _encode({"id": topic_id.hex, "configs": dict(configs), **_former(former_ids)})


def _former(topic_ids: Iterable[UUID]) -> dict[str, list[str]]:
    """Returns the field of former topic ids; empty where there are none, as usual."""
    texts = [one.hex for one in topic_ids]
    return {"former": texts} if texts else {}


def _former_of(fields: Mapping[str, Any]) -> tuple[UUID, ...]:
    return tuple(map(UUID, fields.get("former", ())))


def decode_topic(value: bytes) -> TopicRecord:
    fields = json.loads(value)
    return TopicRecord(UUID(fields["id"]), fields["configs"], _former_of(fields))


def encode_tombstone(tombstone: Tombstone) -> bytes:
    return _encode(
        {
            "id": tombstone.topic_id.hex,
            "leader_epoch": tombstone.leader_epoch,
            "deleted_ms": tombstone.deleted_ms,
            **_former(tombstone.former_ids),
        }
    )


def decode_tombstone(value: bytes) -> Tombstone:
    fields = json.loads(value)
    return Tombstone(UUID(fields["id"]), fields["leader_epoch"], fields["deleted_ms"], _former_of(fields))


def encode_broker(
    endpoints: Iterable[Listener],
    rack: str | None,
    directory: str = "",
    incarnation: str = "",
    registrations: int = 0,
) -> bytes:
    fields = {
        "endpoints": [[endpoint.name, endpoint.host, endpoint.port] for endpoint in endpoints],
        "rack": rack,
        "directory": directory,
        "incarnation": incarnation,
        "registrations": registrations,
    }
    return _encode(fields)


def decode_broker(node_id: int, value: bytes, epoch: int) -> BrokerRegistration:
    fields = json.loads(value)
    endpoints = tuple(Listener(name, host, port) for name, host, port in fields["endpoints"])
    return BrokerRegistration(
        node_id,
        epoch,
        endpoints,
        fields["rack"],
        fields.get("directory", ""),
        incarnation=fields.get("incarnation", ""),
        registrations=fields.get("registrations", 0),  # earlier versions do not write it
    )


def encode_session(*, stopping: bool = False, full: bool = False, lease: int = 0) -> bytes:
    """Encodes a session. `lease` is the one that it is committed under, so that other brokers can revoke it.

    A broker with a full disk is also encoded as stopping: earlier versions read only that field.
    """
    return _encode({"stopping": stopping or full, "lease": lease, **({"full": True} if full and not stopping else {})})


def session_is_stopping(value: bytes) -> bool:
    """Returns whether the broker is shutting down.

    False for a broker that is marked as stopping only because its disk is full.
    """
    fields = json.loads(value)
    return bool(fields["stopping"]) and not fields.get("full", False)


def session_is_full(value: bytes) -> bool:
    """Returns whether the broker's disk is full, while it continues to serve."""
    return bool(json.loads(value).get("full", False))


def session_lease(value: bytes) -> int:
    return int(json.loads(value).get("lease", 0))


def encode_configs(configs: Mapping[str, str]) -> bytes:
    return _encode(dict(configs))


def decode_configs(value: bytes) -> dict[str, str]:
    configs: dict[str, str] = json.loads(value)
    return configs


def encode_field(name: str, value: str | int) -> bytes:
    """Encodes a record with a single value: cluster id, controller, leader epoch floor."""
    return _encode({name: value})


def encode_producer_ids(next_id: int, floor: int) -> bytes:
    """Encodes the next producer id block, which begins at `next_id`.

    No broker allocates an id below `floor`, also not from a block that it already has.
    """
    return _encode({"next": next_id, "floor": floor} if floor else {"next": next_id})


def decode_producer_ids(value: bytes) -> tuple[int, int]:
    fields = json.loads(value)
    return int(fields["next"]), int(fields.get("floor", 0))


def decode_text(name: str, value: bytes) -> str:
    return str(json.loads(value)[name])


def decode_number(name: str, value: bytes) -> int:
    return int(json.loads(value)[name])


def _encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()
