"""Health: is the gateway alive, can it serve, and what of each part."""

from fastapi import Response

from headrace.client.factory import BrokerUnreachable
from headrace.client.refusals import Refused
from headrace.gateway import schemas
from headrace.gateway.problems import Problem
from headrace.gateway.routing import Client, document, make_router
from headrace.gateway.services import Services

short = make_router("health")
full = make_router("health")


@short.get("/health", response_model=schemas.Health)
async def live() -> Response:
    """Whether this process answers. Says nothing of the broker: see /ready."""
    return document({"status": "ok"})


@short.get("/ready", response_model=schemas.Health)
async def ready(client: Client) -> Response:
    """Whether requests can be served: a broker answers."""
    checks = await _checks(client)
    if checks["broker"]["status"] != "ok":
        raise Problem(503, checks["broker"]["detail"], retriable=True)
    return document({"status": "ok"})


@full.get("/health")
async def health(client: Client) -> Response:
    """Each check with its outcome."""
    checks = await _checks(client)
    status = "ok" if all(one["status"] == "ok" for one in checks.values()) else "degraded"
    return document({"status": status, "checks": checks})


async def _checks(client: Services) -> dict[str, dict[str, str]]:
    try:
        facts = await client.cluster.everything()
    except (BrokerUnreachable, Refused) as error:
        return {"broker": {"status": "down", "detail": str(error)}}
    partitions = [(topic.name, one) for topic in facts.topics.values() for one in topic.partitions]
    leaderless = [f"{name}-{one.partition}" for name, one in partitions if one.leader < 0]
    behind = [f"{name}-{one.partition}" for name, one in partitions if len(one.isr) < len(one.replicas)]
    return {
        "broker": {"status": "ok", "detail": f"{len(facts.brokers)} of the cluster"},
        "leaders": _verdict(leaderless, "have no leader"),
        "replicas": _verdict(behind, "have replicas that are behind"),
    }


def _verdict(bad: list[str], words: str) -> dict[str, str]:
    if not bad:
        return {"status": "ok", "detail": "all partitions"}
    return {"status": "degraded", "detail": f"{len(bad)} partitions {words}, first {bad[0]}"}
