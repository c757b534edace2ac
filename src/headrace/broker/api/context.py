"""Context of a request: what a handler needs besides the decoded request."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from headrace.protocol.api import ApiKey

if TYPE_CHECKING:
    from headrace.broker.server import Broker
    from headrace.security.authorization import Principal


@dataclass(slots=True)
class RequestContext:
    broker: "Broker"
    principal: "Principal"
    client_id: str
    client_host: str
    listener: str
    api_key: ApiKey
    api_version: int
    correlation_id: int
