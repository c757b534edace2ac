"""The OpenAPI document tells the truth: what it allows is answered as it says, and what it forbids is refused.

schemathesis makes the requests. A bounded run: a few examples for each operation.
"""

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis.specs.openapi.checks import positive_data_acceptance

from headrace.api.rest.routes.messages import WAIT_MS_MAX
from headrace.api.rest.schemas import PARTITIONS_MAX
from headrace.testing import LocalBroker

EXAMPLES = 8
# Streams do not end by themselves.
ENDLESS = ("/stream",)
# What a real client may ask, and what would only make this test wait or the machine groan: it asks for less then. What
# nobody may ask stays as it is.
WAIT_MS_HERE = 5
PARTITIONS_HERE = 3


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    configs = {"group.initial.rebalance.delay.ms": "0", "request_timeout_ms": "4000"}
    with LocalBroker(gateway=True, settings=configs) as broker:
        yield broker


@pytest.fixture(scope="module")
def api(broker: LocalBroker) -> Any:
    httpx.post(f"{broker.http_url}/topics", json={"name": "my-topic", "partitions": 2}, timeout=30).raise_for_status()
    return schemathesis.openapi.from_url(f"{broker.http_url}/api/v1/openapi.json")


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mode", ["positive", "negative"])
def test_every_operation_answers_as_documented(api, mode):
    failures: list[str] = []
    for found in api.get_all_operations():
        operation = found.ok()
        if operation.path.endswith(ENDLESS):
            continue
        try:
            _try(operation, mode)
        except Unsatisfiable:
            continue  # nothing can be wrong with a request that has no parts
        except (Exception, BaseExceptionGroup) as error:
            failures.append(f"{operation.method.upper()} {operation.path}: {error}")
    assert failures == [], "\n\n".join(failures)


def _try(operation: Any, mode: str) -> None:
    strategy = operation.as_strategy(generation_mode=schemathesis.GenerationMode(mode))

    @given(case=strategy)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    def run(case: Any) -> None:
        _tame(case)
        # What fits the schema may still make no sense to the broker: a config that it does not know, for one.
        case.call_and_validate(timeout=30, excluded_checks=[positive_data_acceptance])

    run()


def _tame(case: Any) -> None:
    _lower(case.query, "wait_ms", WAIT_MS_HERE, WAIT_MS_MAX)
    _lower(case.body, "partitions", PARTITIONS_HERE, PARTITIONS_MAX)


def _lower(values: Any, name: str, most: int, allowed: int) -> None:
    if isinstance(values, dict) and isinstance(values.get(name), int) and most < values[name] <= allowed:
        values[name] = most


def test_the_page_and_its_document_are_served(broker, api):
    assert "swagger" in httpx.get(f"{broker.http_url}/docs", timeout=30).text.lower()
    document = httpx.get(f"{broker.http_url}/api/v1/openapi.json", timeout=30).json()
    assert "/topics/{topic}/messages" in document["paths"]
    assert "/api/v1/groups/{group}/consumers" in document["paths"]
