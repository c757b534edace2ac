"""The coordinator of a group hangs: commits wait for it, and nothing else of the REST process does."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from headrace.testing.local.cluster import LocalCluster
from tests.gateways import gateway_alone
from tests.integration.gateway.test_groups import join
from tests.patience import until

WAIT_S = 90.0


@pytest.mark.slow
def test_commit_that_waits_holds_up_no_other_request(tmp_path: Path) -> None:
    settings = {"group.initial.rebalance.delay.ms": "0", "default.replication.factor": "3"}
    with (
        LocalCluster(3, settings=settings) as cluster,
        gateway_alone(cluster.bootstrap, tmp_path) as url,
        httpx.Client(base_url=url, timeout=WAIT_S) as rest,
        ThreadPoolExecutor(1) as pool,
    ):
        until(lambda: rest.get("/ready").status_code == 200, "it is ready", WAIT_S)
        rest.post("/topics", json={"name": "t", "partitions": 1}).raise_for_status()
        rest.post("/topics/t/messages", json={"value": "v"}).raise_for_status()
        path = join(rest, "g", "t")
        until(lambda: rest.get(f"{path}/messages?wait_ms=1000").json()["messages"], "it comes", WAIT_S)
        coordinator = int(rest.get("/api/v1/groups/g").json()["coordinator"].split()[0])
        begun = threading.Event()

        def commit() -> httpx.Response:
            begun.set()
            return rest.post(f"{path}/offsets", json={})

        cluster.pause(coordinator)
        committing = pool.submit(commit)
        begun.wait()
        for _ in range(20):
            assert httpx.get(f"{url}/health", timeout=WAIT_S).status_code == 200
        was_waiting = not committing.done()
        cluster.resume(coordinator)
        assert committing.result().status_code == 200
        assert was_waiting, "requests are answered while a commit waits"
