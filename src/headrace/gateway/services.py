"""What the routes work with: one client of each kind for the whole process, made at start and closed at the end."""

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from fastapi import Request

from headrace.client.cluster import Cluster
from headrace.client.factory import make_admin
from headrace.client.publisher import Acks, Publisher, PublisherSettings
from headrace.model.settings import GatewaySettings

if TYPE_CHECKING:
    from confluent_kafka.admin import AdminClient

CLIENT_ID = "headrace-gateway"
THREADS_MAX = 64


@dataclass(slots=True)
class Services:
    settings: GatewaySettings
    bootstrap: str
    request_timeout_s: float
    cluster: Cluster
    publisher: Publisher
    admin: "AdminClient"
    # Python's own pool has few threads; whoever would have to wait for one is told so instead.
    threads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(THREADS_MAX))
    # Set when the process is told to stop: whoever waits for records ends then, instead of being cut off.
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    @classmethod
    def start(cls, settings: GatewaySettings, bootstrap: str, request_timeout_ms: int) -> "Services":
        """Connects to nobody yet: a gateway may be up before its broker is."""
        publishing = PublisherSettings(
            acks=Acks(settings.acks),
            retries=settings.retries,
            retry_backoff_ms=settings.retry_backoff_ms,
            request_timeout_ms=request_timeout_ms,
            linger_ms=settings.linger_ms,
            client_id=CLIENT_ID,
        )
        cluster = Cluster(
            bootstrap,
            client_id=CLIENT_ID,
            request_timeout_s=request_timeout_ms / 1000,
            retry_backoff_s=settings.retry_backoff_ms / 1000,
        )
        return cls(
            settings=settings,
            bootstrap=bootstrap,
            request_timeout_s=request_timeout_ms / 1000,
            cluster=cluster,
            publisher=Publisher(bootstrap, publishing),
            admin=make_admin(bootstrap, {"client.id": CLIENT_ID}),
        )

    async def close(self) -> None:
        await self.publisher.close()
        self.cluster.close()


def services(request: Request) -> Services:
    return cast(Services, request.app.state.services)
