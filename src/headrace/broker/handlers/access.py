"""What several handlers need: verdicts, addresses, names that mean something."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import TypeVar

from headrace.broker.api.context import RequestContext
from headrace.config.settings import Listener
from headrace.core.image.model import BrokerRegistration
from headrace.security.authorization import CLUSTER_NAME, Access, ResourceType, authorized_operations

# What Kafka calls the log of its own facts. Tools ask about it; nobody can have a topic of that name.
METADATA_TOPIC = "__cluster_metadata"

Key = TypeVar("Key", bound=Hashable)


def allows(call: RequestContext, access: Access, name: str = CLUSTER_NAME) -> bool:
    return call.broker.authorizer.allows(call.principal, call.client_host, access, name)


def operations_on(call: RequestContext, resource: ResourceType, name: str = CLUSTER_NAME) -> int:
    """The bit field of everything that the caller may do to a resource."""
    return authorized_operations(call.broker.authorizer, call.principal, call.client_host, resource, name)


def reachable_brokers(call: RequestContext) -> Iterator[tuple[BrokerRegistration, Listener]]:
    """Brokers that are there and have the listener through which the call came, with their address on it.

    While no session stands, because the store was away, those that were there: they are about to come back, and
    librdkafka from 2.10 on forgets every address with an empty list and never asks anybody again.
    """
    image = call.broker.image
    for broker in (image.live_brokers() or dict(sorted(image.brokers.items()))).values():
        for endpoint in broker.endpoints:
            if endpoint.name == call.listener:
                yield broker, endpoint


def controller_id(call: RequestContext) -> int:
    """Whom clients ask for changes. Any broker carries them out, so ours does while no other is known."""
    image = call.broker.image
    return image.controller if image.controller in image.live_brokers() else call.broker.node_id


def repeated(keys: Iterable[Key]) -> set[Key]:
    """Those that are named more than once: clients get an error for them instead of an arbitrary choice."""
    return {key for key, count in Counter(keys).items() if count > 1}
