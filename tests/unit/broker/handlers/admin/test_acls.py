"""DescribeAcls, CreateAcls and DeleteAcls of a broker without access control."""

from typing import Any

import pytest

from headrace.protocol.api import ApiKey
from tests.unit.broker.handlers.handler_kit import DenyAll, HandlerKit

LITERAL, ANY = 3, 1
CREATION: dict[str, Any] = {
    "resource_type": 2,
    "resource_name": "t",
    "resource_pattern_type": LITERAL,
    "principal": "User:alice",
    "host": "*",
    "operation": 3,
    "permission_type": 3,
}
FILTER: dict[str, Any] = {
    "resource_type_filter": ANY,
    "pattern_type_filter": ANY,
    "operation": ANY,
    "permission_type": ANY,
}

VERSIONS = range(1, 4)


@pytest.mark.parametrize("version", VERSIONS)
async def test_describing_acls_says_that_there_is_no_access_control(kit: HandlerKit, version: int) -> None:
    answer = await kit.ask(ApiKey.DESCRIBE_ACLS, version, **FILTER)
    assert (answer.error_code.value, answer.resources) == (54, ())
    assert answer.error_message


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_creation_is_refused(kit: HandlerKit, version: int) -> None:
    answer = await kit.ask(ApiKey.CREATE_ACLS, version, creations=[CREATION, CREATION])
    assert [row.error_code.value for row in answer.results] == [54, 54]
    assert all(row.error_message for row in answer.results)


@pytest.mark.parametrize("version", VERSIONS)
async def test_every_filter_of_a_deletion_is_refused(kit: HandlerKit, version: int) -> None:
    answer = await kit.ask(ApiKey.DELETE_ACLS, version, filters=[FILTER, FILTER])
    assert [(row.error_code.value, row.matching_acls) for row in answer.filter_results] == [(54, ()), (54, ())]


async def test_nothing_asked_is_nothing_answered(kit: HandlerKit) -> None:
    assert (await kit.ask(ApiKey.CREATE_ACLS, creations=())).results == ()
    assert (await kit.ask(ApiKey.DELETE_ACLS, filters=())).filter_results == ()


async def test_acls_are_nobodys_business_without_permission(kit: HandlerKit) -> None:
    kit.authorizer = DenyAll()
    assert (await kit.ask(ApiKey.DESCRIBE_ACLS, **FILTER)).error_code.value == 31
    created = await kit.ask(ApiKey.CREATE_ACLS, creations=[CREATION])
    assert [row.error_code.value for row in created.results] == [31]
    deleted = await kit.ask(ApiKey.DELETE_ACLS, filters=[FILTER])
    assert [row.error_code.value for row in deleted.filter_results] == [31]
