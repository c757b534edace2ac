"""Functions that several handlers share: authorization checks, broker addresses, internal names."""

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator
from typing import TypeVar

from headrace.broker.api.context import RequestContext
from headrace.config.settings import Listener
from headrace.core.image.model import BrokerRegistration
from headrace.security.authorization import CLUSTER_NAME, Access, ResourceType, authorized_operations

# Name of Kafka's metadata log. Tools query it by this name; no topic can have it.
METADATA_TOPIC = "__cluster_metadata"

Key = TypeVar("Key", bound=Hashable)


def allows(call: RequestContext, access: Access, name: str = CLUSTER_NAME) -> bool:
    return call.broker.authorizer.allows(call.principal, call.client_host, access, name)


def operations_on(call: RequestContext, resource: ResourceType, name: str = CLUSTER_NAME) -> int:
    """Returns the bit field of all operations that the caller may perform on a resource."""
    return authorized_operations(call.broker.authorizer, call.principal, call.client_host, resource, name)


def reachable_brokers(call: RequestContext) -> Iterator[tuple[BrokerRegistration, Listener]]:
    """Yields the live brokers that have the listener of this request, with their address on it.

    When no broker has a session because the metadata store was unavailable, yields all registered brokers: they are
    about to open new sessions. librdkafka 2.10 and newer drops every address when it receives an empty list, and
    never requests metadata again.
    """
    image = call.broker.image
    for broker in (image.live_brokers() or dict(sorted(image.brokers.items()))).values():
        for endpoint in broker.endpoints:
            if endpoint.name == call.listener:
                yield broker, endpoint


def controller_id(call: RequestContext) -> int:
    """Returns the broker to which clients send changes: the active controller.

    Any broker executes them, so this broker returns itself while no controller is live.
    """
    image = call.broker.image
    return image.controller if image.controller in image.live_brokers() else call.broker.node_id


def repeated(keys: Iterable[Key]) -> set[Key]:
    """Returns the keys that occur more than once: clients get an error for them instead of an arbitrary choice."""
    return {key for key, count in Counter(keys).items() if count > 1}
