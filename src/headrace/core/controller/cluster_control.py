"""Broker registrations, broker sessions, the controller lease, and blocks of producer ids.

Pure; performs no I/O. The caller commits the decisions.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.config.settings import Listener
from headrace.core.image import records
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import NO_CONTROLLER, BrokerRegistration, Decision
from headrace.model.errors import ErrorCode, InvalidConfig, RequestError

# Ids per block, as in Kafka: one commit per thousand new producers, and at most a thousand of 2^63 ids lost in a crash.
PRODUCER_IDS_PER_BLOCK = 1000


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    first: int
    count: int


class DuplicateBroker(RequestError):
    """Another running process has registered with this broker id."""

    code = ErrorCode.DUPLICATE_BROKER_REGISTRATION
    retriable = True


class UnknownBroker(RequestError):
    """The broker id is not registered."""

    code = ErrorCode.BROKER_ID_NOT_REGISTERED


class BrokerInUse(RequestError):
    """The broker is live or holds replicas, and cannot be unregistered."""

    code = ErrorCode.INVALID_REQUEST


def register(
    image: MetadataImage,
    *,
    node_id: int,
    endpoints: Iterable[Listener],
    rack: str | None,
    configured_cluster_id: str | None,
    new_cluster_id: str,
    directory: str = "",
    known_as: str | None = None,
    incarnation: str = "",
    registrations: int = 0,
    alone: bool = True,
) -> Decision[None]:
    """Registers this broker with its endpoints. The first registration of a cluster sets the cluster id.

    `known_as` is the directory id to register if it differs from the broker's own. While a session of this node id is
    valid, only the same `incarnation` registers: the process that the session belonged to is known to be dead. A
    copied data directory has the same directory id and another incarnation. `registrations`: see
    `BrokerRegistration`. With `alone` (a metadata store that no other node can reach), the broker gets a session that
    never expires, and is the controller.
    """
    known = image.brokers.get(node_id)
    if not alone and known is not None and known.is_live and not _is_restart(known, directory, incarnation):
        raise DuplicateBroker(
            f"Another broker is registered with broker id {node_id} and has a session. Give this broker an id and a"
            " data directory of its own, or stop the other broker."
        )
    writes: dict[str, bytes | None] = {
        records.broker_key(node_id): records.encode_broker(
            endpoints, rack, directory if known_as is None else known_as, incarnation, registrations
        )
    }
    if alone:
        writes[records.CONTROLLER] = records.encode_field("node", node_id)
        writes[records.session_key(node_id)] = records.encode_session()
    if not image.cluster_id:
        writes[records.CLUSTER] = records.encode_field("id", configured_cluster_id or new_cluster_id)
    elif configured_cluster_id not in (None, image.cluster_id):
        raise InvalidConfig(
            f"this node is configured for cluster {configured_cluster_id}, but its metadata belongs to"
            f" {image.cluster_id}; correct cluster.id, or give the node a directory of its own"
        )
    # A session that begins between the check above and the commit belongs to another process.
    return Decision(None, writes, unchanged=() if alone else (records.session_key(node_id),))


def _is_restart(known: BrokerRegistration, directory: str, incarnation: str) -> bool:
    return incarnation != "" and (known.directory, known.incarnation) == (directory, incarnation)


def begin_session(
    image: MetadataImage, node_id: int, epoch: int, *, lease: int, stopping: bool = False, full: bool = False
) -> Decision[None]:
    """Begins the broker's session. It is valid as long as the lease that it is committed under."""
    known = image.brokers.get(node_id)
    if known is None or known.epoch != epoch:
        raise DuplicateBroker(f"Another process has registered with broker id {node_id}; this one shuts down")
    return Decision(
        None,
        {records.session_key(node_id): records.encode_session(stopping=stopping, full=full, lease=lease)},
        unchanged=(records.broker_key(node_id),),
    )


def count_stop(image: MetadataImage, node_id: int, registrations: int) -> Decision[None]:
    """Records a clean stop in the registration.

    Copies of the data directory that were made before are then detected as older.
    """
    known = image.brokers.get(node_id)
    if known is None or known.registrations >= registrations:
        return Decision(None, {})
    value = records.encode_broker(known.endpoints, known.rack, known.directory, known.incarnation, registrations)
    return Decision(None, {records.broker_key(node_id): value})


def unregister(image: MetadataImage, node_id: int) -> Decision[None]:
    """Unregisters a broker that has no session and holds no replica."""
    known = image.brokers.get(node_id)
    if known is None:
        raise UnknownBroker(f"no broker has the id {node_id}")
    if known.is_live:
        raise BrokerInUse(f"broker {node_id} runs; stop it first")
    for topic in image.topics.values():
        if any(node_id in state.replicas for state in topic.partitions):
            raise BrokerInUse(f"broker {node_id} holds replicas, of {topic.name} for one; move them to others first")
    return Decision(
        None,
        {records.broker_key(node_id): None},
        unchanged=(records.session_key(node_id), records.PLACEMENTS),
        touched=(records.UNREGISTRATIONS,),
    )


def claim_controller(image: MetadataImage, node_id: int) -> Decision[bool]:
    """Returns whether this broker is the active controller. Without one, this broker takes the controller lease."""
    if image.controller != NO_CONTROLLER:
        return Decision(image.controller == node_id, {})
    return Decision(
        True, {records.CONTROLLER: records.encode_field("node", node_id)}, unchanged=(records.session_key(node_id),)
    )


def next_producer_ids(image: MetadataImage) -> Decision[ProducerIdBlock]:
    first = image.next_producer_id
    following = records.encode_producer_ids(first + PRODUCER_IDS_PER_BLOCK, image.producer_id_floor)
    writes = {records.PRODUCER_IDS: following}
    return Decision(ProducerIdBlock(first, PRODUCER_IDS_PER_BLOCK), writes)
