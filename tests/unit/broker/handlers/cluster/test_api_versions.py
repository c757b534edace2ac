"""UpdateFeatures, and the features that ApiVersions tells of."""

import pytest

from headrace.broker.handlers.cluster.api_versions import FEATURES
from headrace.protocol.api import ApiKey
from tests.unit.broker.handlers.handler_kit import DenyAll, HandlerKit

INVALID_UPDATE_VERSION = 95


def updates(version: int, levels: dict[str, int]) -> list[dict[str, object]]:
    how = "allow_downgrade" if version == 0 else "upgrade_type"
    return [{"feature": name, "max_version_level": level, how: 1} for name, level in levels.items()]


@pytest.mark.parametrize("version", range(3))
async def test_what_is_so_already_may_be_wanted(kit: HandlerKit, version: int) -> None:
    levels = {one.name: one.level for one in FEATURES}
    answer = await kit.ask(ApiKey.UPDATE_FEATURES, version, feature_updates=updates(version, levels))
    assert (answer.error_code.value, answer.error_message) == (0, None)
    if version < 2:
        assert [(row.feature, row.error_code.value) for row in answer.results] == [(one.name, 0) for one in FEATURES]


@pytest.mark.parametrize(
    ("levels", "told"),
    [
        ({"transaction.version": 2, "group.version": 0}, "group.version is 1 in this release"),
        ({"group.version": 1, "transaction.version": 3}, "cannot be 3"),
        ({"metadata.version": 27}, "no feature is called 'metadata.version'"),
    ],
)
async def test_other_levels_are_refused_with_the_reason(kit: HandlerKit, levels: dict[str, int], told: str) -> None:
    newest = await kit.ask(ApiKey.UPDATE_FEATURES, feature_updates=updates(2, levels))
    assert newest.error_code.value == INVALID_UPDATE_VERSION
    assert told in newest.error_message
    older = await kit.ask(ApiKey.UPDATE_FEATURES, 1, feature_updates=updates(1, levels))
    assert (older.error_code.value, older.results[-1].error_code.value) == (0, INVALID_UPDATE_VERSION)
    assert told in older.results[-1].error_message


@pytest.mark.parametrize("version", range(3))
async def test_strangers_learn_nothing(kit: HandlerKit, version: int) -> None:
    kit.authorizer = DenyAll()
    answer = await kit.ask(ApiKey.UPDATE_FEATURES, version, feature_updates=updates(version, {"group.version": 1}))
    assert answer.error_code.value == 31


async def test_the_supported_levels_are_those_that_can_be_had(kit: HandlerKit) -> None:
    answer = await kit.ask(ApiKey.API_VERSIONS)
    assert [(one.name, one.min_version, one.max_version) for one in answer.supported_features] == [
        (one.name, one.level, one.level) for one in FEATURES
    ]
