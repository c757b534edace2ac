"""A broker's own facts: its registration, its session, the controller's seat, blocks of producer ids.

Pure decisions over the image; whoever commits them is elsewhere.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from headrace.config.settings import Listener
from headrace.core.image import records
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import NO_CONTROLLER, BrokerRegistration, Decision
from headrace.model.errors import ErrorCode, InvalidConfig, RequestError

# How many ids a broker takes at a time, as Kafka: a commit per thousand new producers, and at most a thousand
# of 2^63 ids lost in a crash.
PRODUCER_IDS_PER_BLOCK = 1000


@dataclass(frozen=True, slots=True)
class ProducerIdBlock:
    first: int
    count: int


class DuplicateBroker(RequestError):
    """Another process that runs now has this node's id."""

    code = ErrorCode.DUPLICATE_BROKER_REGISTRATION
    retriable = True


class UnknownBroker(RequestError):
    """No broker has this id."""

    code = ErrorCode.BROKER_ID_NOT_REGISTERED


class BrokerInUse(RequestError):
    """The broker cannot be forgotten yet."""

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
    """This broker is here, under these addresses; the first one of all gives the cluster its id.

    `known_as` is the directory that is written down, if it is not yet the broker's own. While a session of this node
    id lasts, only the same `incarnation` registers: the process that it belonged to is known to be dead. A copy of the
    data directory has the same directory id and another incarnation. `registrations`: see `BrokerRegistration`.
    Where nobody else can come to these facts (`alone`), it has a session without an end and controls everything.
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
    # A session that begins between the check above and the commit is that of another process.
    return Decision(None, writes, unchanged=() if alone else (records.session_key(node_id),))


def _is_restart(known: BrokerRegistration, directory: str, incarnation: str) -> bool:
    return incarnation != "" and (known.directory, known.incarnation) == (directory, incarnation)


def begin_session(
    image: MetadataImage, node_id: int, epoch: int, *, lease: int, stopping: bool = False, full: bool = False
) -> Decision[None]:
    """The broker is there, from now on as long as the lease that this is committed under."""
    known = image.brokers.get(node_id)
    if known is None or known.epoch != epoch:
        raise DuplicateBroker(f"Another process has registered with broker id {node_id}; this one shuts down")
    return Decision(
        None,
        {records.session_key(node_id): records.encode_session(stopping=stopping, full=full, lease=lease)},
        unchanged=(records.broker_key(node_id),),
    )


def count_stop(image: MetadataImage, node_id: int, registrations: int) -> Decision[None]:
    """The directory of this broker counts a clean stop: copies of it that were made before are older ones."""
    known = image.brokers.get(node_id)
    if known is None or known.registrations >= registrations:
        return Decision(None, {})
    value = records.encode_broker(known.endpoints, known.rack, known.directory, known.incarnation, registrations)
    return Decision(None, {records.broker_key(node_id): value})


def unregister(image: MetadataImage, node_id: int) -> Decision[None]:
    """A broker that is gone, and holds nothing, is forgotten."""
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
    """Whether this broker is the controller: if nobody is, it takes the seat for as long as its lease lasts."""
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
