import pytest

from headrace.model.errors import ErrorCode
from headrace.protocol.api import SERVED, ApiKey
from headrace.security.authorization import (
    ANONYMOUS,
    DENIED,
    OPERATIONS_OF,
    TABLE,
    Access,
    AllowAll,
    Operation,
    Principal,
    ResourceType,
    access_for,
    authorized_operations,
)


def test_every_served_api_has_a_row_and_no_other_has_one() -> None:
    assert set(TABLE) == set(SERVED)


def test_only_api_versions_is_open_to_everybody() -> None:
    assert [api for api, asked in TABLE.items() if not asked] == [ApiKey.API_VERSIONS]


def test_every_question_is_about_an_operation_that_the_resource_has() -> None:
    for asked in TABLE.values():
        for access in asked:
            assert access.operation in OPERATIONS_OF[access.resource]


def test_every_resource_has_a_name_for_its_refusal() -> None:
    assert set(DENIED) == set(ResourceType)
    assert DENIED[ResourceType.TOPIC] is ErrorCode.TOPIC_AUTHORIZATION_FAILED


def test_a_question_outside_of_the_table_cannot_be_asked() -> None:
    assert access_for(ApiKey.METADATA, ResourceType.TOPIC, Operation.DESCRIBE) == (
        ResourceType.TOPIC,
        Operation.DESCRIBE,
    )
    with pytest.raises(AssertionError, match="not in the table"):
        access_for(ApiKey.METADATA, ResourceType.TOPIC, Operation.DELETE)


def test_the_open_authorizer_allows_everything() -> None:
    access = Access(ResourceType.CLUSTER, Operation.ALTER)
    assert AllowAll().is_open
    assert AllowAll().allows(ANONYMOUS, "127.0.0.1", access, "kafka-cluster")
    assert AllowAll().allows_some(ANONYMOUS, "127.0.0.1", access)


def test_authorized_operations_are_one_bit_for_each() -> None:
    class Readers:
        is_open = False

        def allows(self, principal: Principal, host: str, access: Access, name: str) -> bool:
            return access.operation in (Operation.READ, Operation.DESCRIBE) and name == "t"

        def allows_some(self, principal: Principal, host: str, access: Access) -> bool:
            return False

    bits = authorized_operations(Readers(), ANONYMOUS, "127.0.0.1", ResourceType.TOPIC, "t")
    assert bits == (1 << 3) | (1 << 8)
    assert authorized_operations(Readers(), ANONYMOUS, "127.0.0.1", ResourceType.TOPIC, "u") == 0


def test_numbers_are_those_of_kafkas_acls() -> None:
    """As Kafka's AclOperation and ResourceType have them."""
    assert {one.name: int(one) for one in ResourceType} == {
        "TOPIC": 2,
        "GROUP": 3,
        "CLUSTER": 4,
        "TRANSACTIONAL_ID": 5,
    }
    assert [int(one) for one in Operation] == list(range(3, 13))


def test_a_principal_is_written_as_tools_write_it() -> None:
    assert str(Principal("User", "alice")) == "User:alice"
