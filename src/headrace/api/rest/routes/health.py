"""Health routes: liveness, readiness, and checks of each process."""

from fastapi import Response

from headrace.api.rest import schemas
from headrace.api.rest.clients import ApiClients
from headrace.api.rest.errors import Problem
from headrace.api.rest.routing import Client, document, make_router
from headrace.client.core.errors import KafkaApiError
from headrace.client.librdkafka import BrokerUnreachable
from headrace.telemetry.health import Check, Checks, Status, not_ready_reason, to_document, worst

short = make_router("health")
full = make_router("health")


@short.get("/health", response_model=schemas.Health)
async def live() -> Response:
    """Liveness of the REST process. Does not check the broker; see /ready."""
    return document({"status": "ok"})


@short.get("/ready", response_model=schemas.Health)
async def ready(client: Client) -> Response:
    """Readiness: a broker responds, and the broker of this node is not isolated from the cluster."""
    reason = not_ready_reason(await _checks(client))
    if reason is not None:
        raise Problem(503, reason, retriable=True)
    return document({"status": "ok"})


@full.get("/health", response_model=schemas.DetailedHealth)
async def health(client: Client) -> Response:
    """Returns all checks: reachability of the broker, partitions of the cluster, and each process of the node."""
    checks = await _checks(client)
    return document({"status": str(worst(checks)), "checks": to_document(checks)})


async def _checks(client: ApiClients) -> Checks:
    return {**await _upstream(client), **await client.telemetry.checks()}


async def _upstream(client: ApiClients) -> Checks:
    """Checks what a Kafka client of the cluster can observe."""
    try:
        facts = await client.cluster.everything()
    except (BrokerUnreachable, KafkaApiError) as error:
        return {"broker": Check(Status.DOWN, str(error))}
    partitions = [(topic.name, one) for topic in facts.topics.values() for one in topic.partitions]
    leaderless = [f"{name}-{one.partition}" for name, one in partitions if one.leader < 0]
    behind = [f"{name}-{one.partition}" for name, one in partitions if len(one.isr) < len(one.replicas)]
    return {
        "broker": Check(Status.OK, f"{len(facts.brokers)} of the cluster"),
        "leaders": _verdict(leaderless, "have no leader"),
        "replicas": _verdict(behind, "have replicas that are behind"),
    }


def _verdict(bad: list[str], words: str) -> Check:
    if not bad:
        return Check(Status.OK, "all partitions")
    return Check(Status.DEGRADED, f"{len(bad)} partitions {words}, first {bad[0]}")
