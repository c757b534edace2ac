"""Builds the Kafka clients of the REST and gRPC processes from the node's settings."""

from headrace.client.aio.client import Cluster
from headrace.client.aio.producer import AsyncProducer
from headrace.client.aio.producer_pool import Acks, PublisherSettings
from headrace.config.settings import GatewaySettings


def open_clients(
    settings: GatewaySettings, bootstrap: str, request_timeout_ms: int, client_id: str
) -> tuple[Cluster, AsyncProducer]:
    """Opens no connection: a gateway process may start before its broker."""
    cluster = Cluster(
        bootstrap,
        client_id=client_id,
        request_timeout_s=request_timeout_ms / 1000,
        retry_backoff_s=settings.retry_backoff_ms / 1000,
    )
    publishing = PublisherSettings(
        acks=Acks(settings.acks),
        retries=settings.retries,
        retry_backoff_ms=settings.retry_backoff_ms,
        request_timeout_ms=request_timeout_ms,
        linger_ms=settings.linger_ms,
        client_id=client_id,
        message_bytes_max=settings.body_bytes_max,
    )
    return cluster, AsyncProducer(bootstrap, publishing, cluster.forget)
