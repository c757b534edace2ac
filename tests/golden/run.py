"""Runs the scripts of an API, each in every version, each against a broker of its own."""

from collections.abc import Iterator
from operator import attrgetter
from typing import NamedTuple

from tests.golden.broker_under_test import BrokerUnderTest
from tests.golden.conversation import Conversation, Step
from tests.golden.golden_file import heading
from tests.golden.scripts.all import SCRIPTS, ScriptFor
from tests.golden.served import served

NOT_SERVED = "versions that are not served"


class Said(NamedTuple):
    heading: str  # "v3, on a slow disk"
    version: int
    steps: list[Step]
    fast_requests: int  # that the broker answered without reading them in full


def conversations(api: int, *, fast_paths: bool = True) -> Iterator[Said]:
    lowest, highest = served()[api]
    for version in range(lowest, highest + 1):
        for one in sorted(SCRIPTS, key=attrgetter("title")):
            if one.api == api:
                yield _converse(one, version, fast_paths)
    with BrokerUnderTest() as broker:
        c = Conversation(broker, api, highest)
        c.ask_in_versions_not_served(lowest, highest)
    yield Said(heading(highest, NOT_SERVED), highest, c.steps, 0)


def _converse(one: ScriptFor, version: int, fast_paths: bool) -> Said:
    with BrokerUnderTest(
        wait_until_flushed=one.wait_until_flushed, after_another=one.after_another, fast_paths=fast_paths
    ) as broker:
        c = Conversation(broker, one.api, version)
        one.script(c)
        if not one.title:
            c.say_what_no_client_says()
    assert not broker.errors, f"the broker logged errors: {broker.errors}"
    return Said(heading(version, one.title), version, c.steps, broker.fast_requests)
