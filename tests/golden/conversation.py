"""One script of requests in one version of one API, against one broker, and what was said.

A script is a function that gets a Conversation and sends requests by field names:

    def list_offsets(c: Conversation) -> None:
        c.create_topic("t")                                        # arranging: is not recorded
        c.ok("latest", topics=[…])                                 # recorded; no error code in the response
        c.error("unknown topic", topics=[…])                       # recorded; an error code, or a closed connection

A field that this version does not have is left out; one that no version has is a mistake in the script. After the
script come the requests that are the same for every API (`say_what_no_client_says`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from struct import pack
from typing import Any
from zlib import crc32

from tests.golden.broker_under_test import BrokerUnderTest, Client
from tests.golden.messages import (
    Count,
    Values,
    errors_in,
    label,
    message,
    read_response,
    request_frame,
    schema,
)
from tests.golden.served import served

# More elements than any frame holds: a reader that trusts the count allocates gigabytes.
HUGE = 2**31 - 2
INT32_MAX = 2**31 - 1
SECOND = 1000
TOPIC, GROUP, CLUSTER, TRANSACTIONAL_ID = 2, 3, 4, 5
RESOURCE_TYPES = {TOPIC: "topic", GROUP: "group", CLUSTER: "cluster", TRANSACTIONAL_ID: "transactional id"}
# The APIs whose normal request is about resources of more than one type, by their keys.
RESOURCE_TYPES_OF = {
    0: (TOPIC, TRANSACTIONAL_ID),  # Produce
    1: (TOPIC, CLUSTER),  # Fetch
    3: (TOPIC, CLUSTER),  # Metadata
    8: (GROUP, TOPIC),  # OffsetCommit
    9: (GROUP, TOPIC),  # OffsetFetch
    16: (GROUP, CLUSTER),  # ListGroups
    19: (TOPIC, CLUSTER),  # CreateTopics
    22: (TOPIC, CLUSTER, TRANSACTIONAL_ID),  # InitProducerId
    23: (TOPIC, CLUSTER),  # OffsetForLeaderEpoch
    24: (TOPIC, CLUSTER, TRANSACTIONAL_ID),  # AddPartitionsToTxn
    25: (GROUP, TRANSACTIONAL_ID),  # AddOffsetsToTxn
    28: (TOPIC, GROUP, TRANSACTIONAL_ID),  # TxnOffsetCommit
    32: (TOPIC, GROUP, CLUSTER),  # DescribeConfigs
    47: (TOPIC, GROUP),  # OffsetDelete
    65: (TOPIC, TRANSACTIONAL_ID),  # DescribeTransactions
    68: (TOPIC, GROUP),  # ConsumerGroupHeartbeat
    69: (TOPIC, GROUP),  # ConsumerGroupDescribe
}
# How long a response to an arranging request may take.
ARRANGING_MS = 60 * SECOND


@dataclass
class Sent:
    data: bytes


@dataclass
class Received:
    data: bytes


@dataclass
class Waited:
    milliseconds: int


@dataclass
class Closed:
    pass


Event = Sent | Received | Waited | Closed

OK, ERROR, CLOSES, ANY = "ok", "error", "closes", "any"


@dataclass
class Step:
    name: str
    expects: str
    events: list[Event] = field(default_factory=list)


Request = tuple[int, int, Values]  # API, version, fields


class Conversation:
    def __init__(self, broker: BrokerUnderTest, api: int, version: int) -> None:
        self.broker = broker
        self.api, self.version = api, version
        self.steps: list[Step] = []
        self.normal: Values | None = None  # the last request that was answered well: what the common errors start from
        self._asked: Counter[str] = Counter()
        self._main: Client | None = None

    # Arranging

    def arrange(self, api: int, version: int, *, allowed: Iterable[int] = (), **fields: Any) -> dict[str, Any]:
        """Ask something that is not recorded, wait for the response, and return it."""
        self.broker.reseed(f"arrange {self._number(api, fields)}")
        client = self.broker.connect()
        client.send(_framed(request_frame(api, version, self._checked(api, version, fields), 0)))
        self.broker.settle()
        answers = client.received()
        waited = 0
        while not answers:
            assert waited < ARRANGING_MS, f"{label(api)} v{version} is not answered"
            assert not client.is_closed, f"{label(api)} v{version} closes the connection"
            self.broker.pass_time(10)
            waited += 10
            answers = client.received()
        client.close()
        self.broker.settle()
        response = read_response(api, version, answers[0])
        errors = set(errors_in(response)) - set(allowed)
        assert not errors, f"{label(api)} v{version} fails with {errors}: {response}"
        return response

    # Recording

    @property
    def main(self) -> Client:
        """The connection of steps that name no other; a new one after it was closed."""
        if self._main is None or self._main.is_closed:
            self._main = self.broker.connect()
        return self._main

    def reconnect(self) -> Client:
        """A new main connection, on which nothing was asked before."""
        self._main = self.broker.connect()
        return self._main

    def ok(self, name: str, *, on: Client | None = None, wait_ms: int = 0, **fields: Any) -> dict[str, Any]:
        response = self._ask(name, OK, on, wait_ms, fields)
        assert response is not None, f"{self._place(name)} is not answered"
        self.normal = fields
        return response

    def error(self, name: str, *, on: Client | None = None, wait_ms: int = 0, **fields: Any) -> dict[str, Any] | None:
        return self._ask(name, ERROR, on, wait_ms, fields)

    def any(self, name: str, *, on: Client | None = None, wait_ms: int = 0, **fields: Any) -> dict[str, Any] | None:
        """Recorded as it is: whether it is an error depends on the version."""
        return self._ask(name, ANY, on, wait_ms, fields)

    def together(
        self, name: str, *requests: Values, on: Client | None = None, wait_ms: int = 0
    ) -> list[dict[str, Any]]:
        """Several requests that arrive in one read."""
        return self.together_of_several_apis(
            name, *((self.api, self.version, fields) for fields in requests), on=on, wait_ms=wait_ms
        )

    def together_of_several_apis(
        self, name: str, *requests: Request, on: Client | None = None, wait_ms: int = 0
    ) -> list[dict[str, Any]]:
        frames = [self.frame(api, version, fields) for api, version, fields in requests]
        pending = self.begin(name, ANY, frames, on)
        if wait_ms:
            pending.wait(wait_ms)
        answers = [event.data for event in pending.step.events if isinstance(event, Received)]
        return [
            read_response(api, version, answer) for (api, version, _), answer in zip(requests, answers, strict=False)
        ]

    def raw(self, name: str, *frames: bytes, expects: str = ANY, on: Client | None = None, wait_ms: int = 0) -> None:
        """Bytes that are not a request of this version."""
        pending = self.begin(name, expects, frames, on)
        if wait_ms:
            pending.wait(wait_ms)

    def start(self, name: str, *, expects: str = ANY, on: Client | None = None, **fields: Any) -> "Pending":
        """A request whose answer comes later: by what another connection does, or when time passes."""
        return self.begin(name, expects, [self.frame(self.api, self.version, fields)], on)

    def begin(self, name: str, expects: str, frames: Sequence[bytes], on: Client | None) -> "Pending":
        assert name not in {step.name for step in self.steps}, f"{self._place(name)} is there twice"
        client = on or self.main
        self.broker.reseed(f"{label(self.api)} {name}")
        step = Step(name, expects, [Sent(frame) for frame in frames])
        self.steps.append(step)
        client.send(b"".join(map(_framed, frames)))
        self.broker.settle()
        pending = Pending(self.broker, client, step)
        pending.look()
        return pending

    def frame(self, api: int, version: int, fields: Values, **options: Any) -> bytes:
        return request_frame(api, version, self._checked(api, version, fields), self._number(api, fields), **options)

    def _number(self, api: int, fields: Values) -> int:
        """Of a request, for its correlation id and what is random: a step more in a script changes no other step."""
        request = f"{api} {sorted(fields.items())}"
        self._asked[request] += 1
        return crc32(f"{request} {self._asked[request]}".encode()) & INT32_MAX

    def _ask(self, name: str, expects: str, on: Client | None, wait_ms: int, fields: Values) -> dict[str, Any] | None:
        pending = self.begin(name, expects, [self.frame(self.api, self.version, fields)], on)
        if wait_ms:
            pending.wait(wait_ms)
        answers = [event.data for event in pending.step.events if isinstance(event, Received)]
        if not answers:
            assert expects != OK, f"{self._place(name)}: no response"
            return None
        try:
            response = read_response(self.api, self.version, answers[-1])
        except AssertionError as error:
            raise AssertionError(f"{self._place(name)}: {error}: {answers[-1].hex()}") from None
        errors = errors_in(response)
        if expects == OK:
            assert not errors, f"{self._place(name)}: {errors} in {response}"
        if expects == ERROR:
            assert errors, f"{self._place(name)}: no error in {response}"
        return response

    def _checked(self, api: int, version: int, fields: Values) -> Values:
        kind = message(api, version, "request")
        own = _names(kind)
        for name in _names_used(fields) - own:
            assert name in _names_of_api(api), f"no version of {label(api)} has a field {name!r}"
        return {name: value for name, value in fields.items() if name in {one.name for one in schema(kind)}}

    def _place(self, name: str) -> str:
        return f"{label(self.api)} v{self.version}, {name!r}"

    # What is the same for every API

    def say_what_no_client_says(self) -> None:
        normal = self.normal
        assert normal is not None, "a script has a request that is answered well"
        kind = message(self.api, self.version, "request")
        arrays = [one.name for one in schema(kind) if one.is_array and one.tag is None]
        self.broker.deny()
        self._generic("everything is denied", self.frame(self.api, self.version, normal))
        for resource in RESOURCE_TYPES_OF.get(self.api, ()):
            self.broker.deny(types=[resource])
            self._generic(f"every {RESOURCE_TYPES[resource]} is denied", self.frame(self.api, self.version, normal))
        self.broker.allow_everything()
        if arrays:
            empty = {**normal, **{name: [] for name in arrays}}
            self._generic("empty arrays", self.frame(self.api, self.version, empty))
        for name in arrays:
            self._generic(f"null {name}", self.frame(self.api, self.version, {**normal, name: None}))
        if arrays:
            huge = self.frame(self.api, self.version, {**normal, arrays[0]: Count(HUGE)})
            self._generic("a count without elements", huge, CLOSES)
        good = self.frame(self.api, self.version, normal)
        self._generic("a byte is missing", good[:-1])
        self._generic("a byte too many", good + b"\0")
        if kind.__flexible__:
            tagged = self.frame(self.api, self.version, normal, with_unknown_tags=True)
            self._generic("unknown tags", tagged)
        self._generic("no client id", self.frame(self.api, self.version, normal, client_id=None))

    def ask_in_versions_not_served(self, lowest: int, highest: int) -> None:
        """The header of a request is read before the version is known to be one that is served."""
        for version in sorted({-1, lowest - 1, highest + 1, 2**15 - 1}):
            frame = pack(">hhih", self.api, version, version & 0xFF, -1) + b"\0"
            self.raw(f"version {version}", frame, on=self.broker.connect())

    def _generic(self, name: str, frame: bytes, expects: str = ANY) -> None:
        """On a connection of its own. A join waits for the other members, a fetch for records: so time passes."""
        pending = self.begin(name, expects, [frame], self.broker.connect())
        if not pending.step.events[1:]:
            pending.wait(30 * SECOND)


class Pending:
    """A step whose answers are not all there."""

    def __init__(self, broker: BrokerUnderTest, client: Client, step: Step) -> None:
        self._broker, self._client, self.step = broker, client, step

    def wait(self, milliseconds: int) -> "Pending":
        self.step.events.append(Waited(milliseconds))
        self._broker.pass_time(milliseconds)
        return self.look()

    def responses(self, api: int, version: int) -> list[dict[str, Any]]:
        frames = [event.data for event in self.step.events if isinstance(event, Received)]
        return [read_response(api, version, frame) for frame in frames]

    def look(self) -> "Pending":
        """Note what has come since the last look."""
        self.step.events += [Received(frame) for frame in self._client.received()]
        if self._client.is_closed and not any(isinstance(one, Closed) for one in self.step.events):
            self.step.events.append(Closed())
        return self


Script = Callable[[Conversation], None]


def _framed(frame: bytes) -> bytes:
    return pack(">i", len(frame)) + frame


@cache
def _names(kind: type[Any]) -> frozenset[str]:
    """Of a message and of everything in it."""
    inner = [_names(one.struct) for one in schema(kind) if one.struct is not None]
    return frozenset({one.name for one in schema(kind)}.union(*inner))


@cache
def _names_of_api(api: int) -> frozenset[str]:
    lowest, highest = served()[api]
    return frozenset().union(*(_names(message(api, version, "request")) for version in range(lowest, highest + 1)))


def _names_used(value: Any) -> set[str]:
    if isinstance(value, Mapping):
        return set(value).union(*map(_names_used, value.values()))
    return set().union(*map(_names_used, value)) if isinstance(value, list) else set()
