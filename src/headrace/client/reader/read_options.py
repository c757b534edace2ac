"""Options of `format("headrace")` reads: topics, starting and ending offsets, limits, security.

Uses the option names of Spark's Kafka connector and validates them before any request. Spark passes option names in
lower case. Unknown names are rejected with the nearest known name, because a misspelled `startingOffset` would
otherwise silently read another range. A bound is a word, offsets as JSON, or timestamps. Pure; performs no I/O.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from enum import Enum
from hashlib import sha256
from typing import Any

from headrace.client.core.config import security_from
from headrace.client.reader.kafka_properties import FORBIDDEN, HONOURED, WITHOUT_EFFECT
from headrace.client.sync.client import ClientConfig
from headrace.model.errors import InvalidConfig
from headrace.model.ids import TopicPartition

EARLIEST_WORD, LATEST_WORD = "earliest", "latest"
# Offsets in JSON that stand for the words, as in Spark's connector.
LATEST_NUMBER, EARLIEST_NUMBER = -1, -2


class Strategy(Enum):
    """What to do with a starting timestamp that is later than every record."""

    ERROR = "error"
    LATEST = "latest"


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetBound:
    """Start or end of a read; one of the first four fields is set.

    `offsets` and `times` must name every partition that is read.
    """

    word: str | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=dict)
    times: Mapping[TopicPartition, int] = field(default_factory=dict)
    time: int | None = None
    strategy: Strategy = Strategy.ERROR
    side: str = "starting"


def bound_of(
    *,
    offsets: str | None = None,
    by_timestamp: str | None = None,
    timestamp: str | None = None,
    strategy: Strategy = Strategy.ERROR,
    side: str = "starting",
    default: str = LATEST_WORD,
) -> OffsetBound:
    """Timestamps take precedence over offsets and a single timestamp over several, as in Spark's connector."""
    if timestamp is not None:
        return OffsetBound(time=_milliseconds(timestamp, f"{side}Timestamp"), strategy=strategy, side=side)
    if by_timestamp is not None:
        times = _by_partition(by_timestamp, f"{side}OffsetsByTimestamp", lowest=0)
        return OffsetBound(times=times, strategy=strategy, side=side)
    text = (offsets or default).strip()
    if text.lower() in (EARLIEST_WORD, LATEST_WORD):
        return OffsetBound(word=text.lower(), side=side)
    by_offset = _by_partition(text, f"{side}Offsets", lowest=EARLIEST_NUMBER)
    if side == "ending" and EARLIEST_NUMBER in by_offset.values():
        raise InvalidConfig(
            f"endingOffsets: {EARLIEST_NUMBER} means earliest, and a query that ends there reads nothing"
        )
    return OffsetBound(offsets=by_offset, side=side)


def _milliseconds(text: str, name: str) -> int:
    if not text.strip().isdecimal():
        raise InvalidConfig(f"{name}: {text!r} is not a time in milliseconds since 1970")
    return int(text)


def _by_partition(text: str, name: str, *, lowest: int) -> dict[TopicPartition, int]:
    example = '{"topic": {"0": 23, "1": -2}}'
    try:
        parsed: Any = json.loads(text)
        found = {
            TopicPartition(topic, int(partition)): int(number)
            for topic, partitions in parsed.items()
            for partition, number in partitions.items()
        }
    except (ValueError, AttributeError, TypeError):
        raise InvalidConfig(f"{name}: {text!r} is neither earliest, latest nor JSON such as {example}") from None
    wrong = [number for number in found.values() if number < lowest]
    if wrong or not found:
        raise InvalidConfig(
            f"{name}: {text!r} {f'holds {wrong[0]}' if wrong else 'is empty'}; write JSON such as {example}"
        )
    return found


# A streaming source waits longer for an unavailable broker, because Spark does not restart a query by itself.
STREAM_PATIENCE_S = 300.0
BATCH_PATIENCE_S = 60.0  # as Kafka's default.api.timeout.ms

GROUP_DIGITS = 12  # of a hash: enough to avoid collisions among a user's queries

_SUBSCRIPTIONS = ("assign", "subscribe", "subscribePattern")
_SHARED = (
    *_SUBSCRIPTIONS,
    "includeHeaders",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "groupIdPrefix",
)
_STARTS = (
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
)
_ENDS = ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp")
_STREAM = ("maxOffsetsPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay", "untilOffsets")
_TUNING = ("fetchOffset.numRetries", "fetchOffset.retryIntervalMs", "kafkaConsumer.pollTimeoutMs")
_OWN_READ = ("commitGroup", "pushFilters", "history")
READ_OPTIONS = (*_SHARED, *_STARTS, *_ENDS, *_STREAM, *_TUNING, *_OWN_READ)
# Spark's own options, which every format receives.
_SPARKS = frozenset({"checkpointlocation", "queryname", "asyncprogresstrackingenabled", "path"})
_ASYNC_COMMITS = "asyncprogresstrackingcheckpointintervalms"

_PROPERTY_PREFIX = "kafka."
_BOOTSTRAP = "kafka.bootstrap.servers"
_DURATION = re.compile(r"\s*(\d+)\s*(ms|millisecond|s|second|m|min|minute|h|hour|d|day)?s?\s*", re.IGNORECASE)
_DURATION_S = {"ms": 0.001, "millisecond": 0.001, "s": 1, "second": 1, "m": 60, "min": 60, "minute": 60}
_DURATION_S |= {"h": 3600, "hour": 3600, "d": 86400, "day": 86400}


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """Partitions to read: named ones, all of named topics, or all of topics whose name matches."""

    assigned: frozenset[TopicPartition] = frozenset()
    topics: tuple[str, ...] = ()
    pattern: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    client: ClientConfig
    subscription: Subscription
    start: OffsetBound
    end: OffsetBound
    read_committed: bool
    include_headers: bool
    fail_on_data_loss: bool
    min_partitions: int | None
    max_records_per_partition: int | None
    max_offsets_per_trigger: int | None
    min_offsets_per_trigger: int | None
    max_trigger_delay_s: float
    until: OffsetBound | None
    commit_group: str | None
    fetch_bytes: int
    push_filters: bool
    history: bool


class Options:
    """Options by name, in their own types. Rejects unknown names."""

    def __init__(self, given: Mapping[str, str], known: tuple[str, ...]) -> None:
        self._given = {name.lower(): value for name, value in given.items()}
        self._check_names(known)
        self.properties = {
            name.removeprefix(_PROPERTY_PREFIX): value
            for name, value in self._given.items()
            if name.startswith(_PROPERTY_PREFIX)
        }

    def _check_names(self, known: tuple[str, ...]) -> None:
        right = {name.lower(): name for name in known}
        properties = {_PROPERTY_PREFIX + name for name in (*HONOURED, *WITHOUT_EFFECT)}
        for name in self._given:
            if name in right or name in properties or name in _SPARKS or name == _ASYNC_COMMITS:
                continue
            if name.removeprefix(_PROPERTY_PREFIX) in FORBIDDEN:
                raise InvalidConfig(f"{name}: {FORBIDDEN[name.removeprefix(_PROPERTY_PREFIX)]}")
            near = get_close_matches(name, [*right, *properties], n=1, cutoff=0.5)
            hint = f"; did you mean {right.get(near[0], near[0])!r}?" if near else ""
            raise InvalidConfig(f"{name!r} is no option of the format headrace{hint}")

    def text(self, name: str, default: str | None = None) -> str | None:
        return self._given.get(name.lower(), default)

    def flag(self, name: str, default: bool) -> bool:
        value = self._given.get(name.lower(), str(default)).strip().lower()
        if value not in ("true", "false"):
            raise InvalidConfig(f"{name}: {value!r} is neither true nor false")
        return value == "true"

    def positive(self, name: str) -> int | None:
        value = self._given.get(name.lower())
        if value is None:
            return None
        if not value.strip().isdecimal() or int(value) < 1:
            raise InvalidConfig(f"{name}: {value!r} is not a whole number above 0")
        return int(value)

    def duration_s(self, name: str, default_s: float) -> float:
        value = self._given.get(name.lower())
        if value is None:
            return default_s
        match = _DURATION.fullmatch(value)
        if match is None:
            raise InvalidConfig(f"{name}: {value!r} is no duration; write 15m, 30s or 500ms")
        return float(match[1]) * _DURATION_S[(match[2] or "ms").lower()]

    def client(self, default_patience_s: float) -> ClientConfig:
        bootstrap = self._given.get(_BOOTSTRAP)
        if not bootstrap:
            raise InvalidConfig(f"{_BOOTSTRAP}: missing; give the address of a broker, e.g. localhost:9092")
        return ClientConfig(
            bootstrap=bootstrap,
            security=security_from(self.properties),
            client_id=self.properties.get("client.id", "headrace-spark"),
            request_timeout_s=self._milliseconds("request.timeout.ms", 30_000),
            patience_s=self._milliseconds("default.api.timeout.ms", default_patience_s * 1000),
            rack=self.properties.get("client.rack", ""),
        )

    def _milliseconds(self, name: str, default_ms: float) -> float:
        value = self.properties.get(name)
        if value is not None and not value.isdecimal():
            raise InvalidConfig(f"kafka.{name}: {value!r} is not a number of milliseconds")
        return float(value or default_ms) / 1000


def read_options(given: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    options = Options(given, READ_OPTIONS)
    _refuse_the_others(options, streaming)
    start = _bound(options, "starting", LATEST_WORD if streaming else EARLIEST_WORD)
    end = bound_of(offsets=LATEST_WORD) if streaming else _bound(options, "ending", LATEST_WORD)
    if not streaming and start.word == LATEST_WORD:
        raise InvalidConfig("startingOffsets: a batch query cannot start at 'latest', there is nothing behind it")
    if end.word == EARLIEST_WORD:
        raise InvalidConfig("endingOffsets: a query that ends at 'earliest' reads nothing")
    history = options.flag("history", False)
    if history:
        _refuse_beside_history(options, streaming)
    isolation = options.properties.get("isolation.level", "read_committed" if history else "read_uncommitted")
    if isolation not in ("read_committed", "read_uncommitted"):
        raise InvalidConfig(f"kafka.isolation.level: {isolation!r} is neither read_committed nor read_uncommitted")
    subscription = _subscription(options)
    return ReadOptions(
        client=options.client(STREAM_PATIENCE_S if streaming else BATCH_PATIENCE_S),
        subscription=subscription,
        start=start,
        end=end,
        read_committed=isolation == "read_committed",
        include_headers=options.flag("includeHeaders", False),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        min_partitions=options.positive("minPartitions"),
        max_records_per_partition=options.positive("maxRecordsPerPartition"),
        max_offsets_per_trigger=options.positive("maxOffsetsPerTrigger"),
        min_offsets_per_trigger=options.positive("minOffsetsPerTrigger"),
        max_trigger_delay_s=options.duration_s("maxTriggerDelay", 15 * 60.0),  # default of Spark's connector
        until=_until(options),
        commit_group=_commit_group(options, subscription),
        fetch_bytes=_fetch_bytes(options),
        push_filters=options.flag("pushFilters", False),
        history=history,
    )


def _refuse_beside_history(options: Options, streaming: bool) -> None:
    for name in () if streaming else (*_STARTS, *_ENDS):  # a stream may start anywhere in the history
        if options.text(name) is not None:
            raise InvalidConfig(f"{name}: history reads all there is of the topic; filter its rows with where(…)")
    if options.properties.get("isolation.level") == "read_uncommitted":
        raise InvalidConfig("kafka.isolation.level: an archive holds committed records alone, so history reads those")


def _refuse_the_others(options: Options, streaming: bool) -> None:
    for name in _ENDS if streaming else _STREAM:
        if options.text(name) is not None:
            kind = "a streaming query has no end" if streaming else "a batch query has no triggers"
            raise InvalidConfig(f"{name}: {kind}; leave it out")
    if options.text("groupIdPrefix") == "":
        raise InvalidConfig("groupIdPrefix: cannot be empty")
    low, high = options.positive("minOffsetsPerTrigger"), options.positive("maxOffsetsPerTrigger")
    if low and high and low > high:
        raise InvalidConfig(f"minOffsetsPerTrigger: {low} is more than maxOffsetsPerTrigger, {high}")


def _bound(options: Options, side: str, default: str) -> OffsetBound:
    strategy_text = (options.text("startingOffsetsByTimestampStrategy", "error") or "").lower()
    if strategy_text not in {strategy.value for strategy in Strategy}:
        raise InvalidConfig(f"startingOffsetsByTimestampStrategy: {strategy_text!r} is neither error nor latest")
    return bound_of(
        offsets=options.text(f"{side}Offsets"),
        by_timestamp=options.text(f"{side}OffsetsByTimestamp"),
        timestamp=options.text(f"{side}Timestamp"),
        strategy=Strategy(strategy_text) if side == "starting" else Strategy.LATEST,
        side=side,
        default=default,
    )


def _until(options: Options) -> OffsetBound | None:
    text = options.text("untilOffsets")
    if text is None:
        return None
    bound = bound_of(offsets=text, side="until")
    if bound.word is not None or min(bound.offsets.values()) < 0:
        raise InvalidConfig(f'untilOffsets: {text!r} names no offsets; write JSON such as {{"topic": {{"0": 23}}}}')
    return bound


def _subscription(options: Options) -> Subscription:
    given = [name for name in _SUBSCRIPTIONS if options.text(name) is not None]
    if len(given) != 1:
        found = f"{' and '.join(given)} are set" if given else "none is set"
        raise InvalidConfig(f"exactly one of {', '.join(_SUBSCRIPTIONS)} is required; {found}")
    (name,) = given
    text = (options.text(name) or "").strip()
    if name == "assign":
        return Subscription(assigned=_assigned(text))
    if name == "subscribe":
        topics = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
        if not topics:
            raise InvalidConfig("subscribe: names no topic; write topic1,topic2")
        return Subscription(topics=topics)
    try:
        re.compile(text)
    except re.error as error:
        raise InvalidConfig(f"subscribePattern: {text!r} is no regular expression ({error})") from None
    if not text:
        raise InvalidConfig("subscribePattern: empty, it would match no topic")
    return Subscription(pattern=text)


def _commit_group(options: Options, subscription: Subscription) -> str | None:
    """Returns the configured group, or one with the configured prefix, or None.

    The suffix is a hash of the topics: it distinguishes queries of different topics and stays the same when a query
    restarts. A random one would leave an abandoned group after each restart.
    """
    named = options.text("commitGroup", options.properties.get("group.id"))
    prefix = options.text("groupIdPrefix")
    if named is not None or prefix is None:
        return named
    what = subscription.pattern or ",".join(sorted(map(str, subscription.assigned or subscription.topics)))
    return f"{prefix}-{sha256(what.encode()).hexdigest()[:GROUP_DIGITS]}"


def _assigned(text: str) -> frozenset[TopicPartition]:
    try:
        topics = json.loads(text)
        assigned = frozenset(TopicPartition(topic, int(one)) for topic, ones in topics.items() for one in ones)
    except (ValueError, AttributeError, TypeError):
        assigned = frozenset()
    if not assigned:
        raise InvalidConfig(f'assign: {text!r} names no partition; write {{"topic": [0, 1]}}')
    return assigned


def _fetch_bytes(options: Options) -> int:
    text = options.properties.get("max.partition.fetch.bytes") or options.properties.get("fetch.max.bytes")
    if text is None:
        from headrace.client.sync.fetcher import FETCH_BYTES

        return FETCH_BYTES
    if not text.isdecimal() or int(text) < 1:
        raise InvalidConfig(f"kafka.max.partition.fetch.bytes: {text!r} is not a number of bytes")
    return int(text)
