"""Diagnosis rules of `headrace doctor`: each names a bottleneck, its evidence and a remedy.

Pure: metrics of a few seconds in, findings out. Every limit has a reason, and a test with metrics on both sides of
it.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from headrace.telemetry.prometheus import Interval, Series

# Average number of syncs in flight: above this, producers wait for the disk.
DISK_BUSY_SHARE = 0.6
SYNCS_AT_ONCE_MANY = 2  # partitions wait more for each other than for the disk
SYNC_P99_SLOW_S = 0.05
# One process uses one core; in the last tenth, queues grow without bound.
CORE_FULL_SHARE = 0.85
# Runnable without a core for this share of the time: other processes use the host.
CPU_WAIT_SHARE = 0.2
LOOP_LATE_S = 0.05
# Below this rate, hot partitions and small batches do not matter.
RECORDS_A_SECOND_MIN = 100.0
HOT_SHARE, HOT_TIMES_AVERAGE = 0.5, 3.0
BATCHES_A_SECOND_MANY = 2_000.0
RECORDS_IN_A_BATCH_FEW = 10.0
LAG_SECONDS_SLOW = 30.0
# Pauses per second in which a connection was not read.
THROTTLES_A_SECOND = 1.0
ERRORS_A_SECOND = 0.1
# Errors that are part of a protocol: clients get them in normal operation, and continue.
EXPECTED_ERRORS = frozenset(
    {"CONCURRENT_TRANSACTIONS", "MEMBER_ID_REQUIRED", "REBALANCE_IN_PROGRESS", "UNSUPPORTED_VERSION"}
)
WAITING_MESSAGES_MANY = 50_000.0
INTERNAL = "__"


class Diagnosis(NamedTuple):
    name: str
    status: str  # ok, warning or problem
    found: str
    advice: str = ""


Rule = Callable[[Interval], Iterator[Diagnosis]]


def diagnose(interval: Interval) -> list[Diagnosis]:
    """Returns the findings, the worst first; if there are none, one that states so."""
    found = [one for rule in RULES for one in rule(interval)]
    found.sort(key=lambda one: one.status != "problem")
    if not found:
        records, requests = _traffic(interval)
        found.append(Diagnosis("bottleneck", "ok", f"none: {records:,.0f} records/s in, {requests:,.0f} requests/s"))
    return found


def _traffic(interval: Interval) -> tuple[float, float]:
    return interval.rate("headrace_produced_records_total"), interval.rate("headrace_request_duration_seconds_count")


def disk_speed(interval: Interval) -> Iterator[Diagnosis]:
    busy = interval.rate("headrace_sync_duration_seconds_sum")
    p99 = interval.quantile(0.99, "headrace_sync_duration_seconds")
    if busy < DISK_BUSY_SHARE and p99 < SYNC_P99_SLOW_S:
        return
    advice = "a faster disk, or flush.policy=replicated on topics with several replicas"
    if busy > SYNCS_AT_ONCE_MANY:
        advice = f"fewer partitions written at once, larger linger.ms; else {advice}"
    found = f"{busy:.1f} syncs are in flight on average, p99 {p99 * 1000:.0f} ms: acks=all waits for them"
    yield Diagnosis("disk speed", "warning", found, advice)


def disk_space(interval: Interval) -> Iterator[Diagnosis]:
    free, reserve = interval.now("headrace_disk_free_bytes"), interval.now("headrace_disk_reserve_bytes")
    if reserve and free < reserve:
        advice = "lower retention, delete topics or records, or add space; the broker then recovers by itself"
        yield Diagnosis("disk space", "problem", f"{free:,.0f} bytes are free: Produce requests are rejected", advice)
        return
    written = interval.rate("headrace_produced_bytes_total")
    hours = (free - reserve) / written / 3600 if written else float("inf")
    if reserve and hours < 4:
        found = f"full in {hours:.1f} hours at {written / 1e6:,.1f} MB/s, unless retention deletes as much"
        yield Diagnosis("disk space", "warning", found, "check retention.ms and retention.bytes, or add space")


def stray_directories(interval: Interval) -> Iterator[Diagnosis]:
    count = interval.now("headrace_stray_directories")
    if count:
        found = f"{count:,.0f} stray directories contain {interval.now('headrace_stray_bytes'):,.0f} bytes"
        advice = "they are removed after log.stray.retention.ms; before, see docs/operations/stray-directories.md"
        yield Diagnosis("stray directories", "warning", found, advice)


def offline_replicas(interval: Interval) -> Iterator[Diagnosis]:
    offline = interval.now("headrace_offline_replicas")
    if offline:
        found = f"{offline:.0f} replicas on this broker cannot be read or written"
        advice = "the broker's log has the reason: free disk space if it is full, else repair the disk and restart"
        yield Diagnosis("offline replicas", "problem", found, advice)


def lost_markers(interval: Interval) -> Iterator[Diagnosis]:
    """Reports open transactions whose end marker may be corrupt.

    Includes transactions in progress around a corrupt batch, which will end by themselves.
    """
    for series, offset in sorted(interval.values("headrace_partition_lost_marker_offset").items()):
        topic, partition = series.label("topic"), series.label("partition")
        found = f"{topic}-{partition}: the end marker of the open transaction at offset {offset:.0f} may be corrupt"
        advice = "if it stays open, read_committed consumers wait there; end it as aborted: headrace transactions abort"
        advice += f" --topic {topic} --partition {partition} --start {offset:.0f}"
        yield Diagnosis("lost marker", "problem", found, advice)


def broker_core(interval: Interval) -> Iterator[Diagnosis]:
    used = interval.rate("process_cpu_seconds_total", part="broker")
    if used < CORE_FULL_SHARE:
        return
    by_api = interval.rates("headrace_request_duration_seconds_count")
    busiest = max(by_api, key=lambda series: by_api[series], default=None)
    most = f", most of them {busiest.label('api')}" if busiest is not None else ""
    _, requests = _traffic(interval)
    found = f"the broker uses {used:.0%} of a core for {requests:,.0f} requests/s{most}"
    yield Diagnosis("event loop", "problem", found, _fewer_requests(interval) or "run more brokers: each uses one core")


def _fewer_requests(interval: Interval) -> str:
    batches = interval.rate("headrace_produced_batches_total")
    records = interval.rate("headrace_produced_records_total")
    if batches > BATCHES_A_SECOND_MANY and records / batches < RECORDS_IN_A_BATCH_FEW:
        return f"larger batches: {records / batches:.1f} records each; raise linger.ms and batch.size of the producers"
    return ""


def small_batches(interval: Interval) -> Iterator[Diagnosis]:
    advice = _fewer_requests(interval)
    if advice and interval.rate("process_cpu_seconds_total", part="broker") < CORE_FULL_SHARE:
        batches = interval.rate("headrace_produced_batches_total")
        yield Diagnosis("batches", "warning", f"{batches:,.0f} small batches per second", advice)


def late_loop(interval: Interval) -> Iterator[Diagnosis]:
    """Reports event loop delays of a broker that does not use its whole core: it was kept from running."""
    p99 = interval.quantile(0.99, "headrace_loop_lag_seconds", part="broker")
    waiting = interval.rate("headrace_process_cpu_wait_seconds_total", part="broker")
    if waiting >= CPU_WAIT_SHARE:
        found = f"the broker waited {waiting:.0%} of the time for a core"
        advice = "move other programs to another host, or give the broker more weight (nice, cgroups) or cores"
        yield Diagnosis("host", "problem", found, advice)
    elif p99 >= LOOP_LATE_S and interval.rate("process_cpu_seconds_total", part="broker") < CORE_FULL_SHARE:
        found = f"the event loop was {p99 * 1000:.0f} ms late (p99) without being busy"
        advice = "it waits for the disk or for memory: does the host swap, is the page cache large enough?"
        yield Diagnosis("event loop", "warning", found, advice)


def slow_readers(interval: Interval) -> Iterator[Diagnosis]:
    pauses = interval.rate("headrace_connection_throttles_total", reason="answers")
    if pauses >= THROTTLES_A_SECOND:
        out = interval.rate("headrace_network_sent_bytes_total")
        found = f"{pauses:,.0f} times a second a client's responses were queued, at {out / 1e6:,.0f} MB/s out"
        advice = (
            "the network or the clients are slower than the broker: compare with the speed of the link, check"
            " the clients"
        )
        yield Diagnosis("network", "warning", found, advice)


def request_memory(interval: Interval) -> Iterator[Diagnosis]:
    pauses = interval.rate("headrace_connection_throttles_total", reason="memory")
    if pauses >= THROTTLES_A_SECOND:
        found = f"{pauses:,.0f} times a second a request had to wait for memory"
        yield Diagnosis("memory", "warning", found, "raise queued.max.request.bytes, or send smaller batches")


def hot_partitions(interval: Interval) -> Iterator[Diagnosis]:
    topics: dict[str, list[tuple[float, Series]]] = defaultdict(list)
    for series, rate in interval.rates("headrace_partition_end_offset").items():
        # an active group writes to one of their partitions, as expected
        if not series.label("topic").startswith(INTERNAL):
            topics[series.label("topic")].append((rate, series))
    for topic, rows in topics.items():
        total = sum(rate for rate, _ in rows)
        most, series = max(rows)
        if len(rows) < 2 or total < RECORDS_A_SECOND_MIN:
            continue
        if most >= total * HOT_SHARE and most >= total / len(rows) * min(HOT_TIMES_AVERAGE, len(rows) * 0.9):
            found = (
                f"{topic}-{series.label('partition')} takes {most / total:.0%} of the topic's {total:,.0f} records/s"
            )
            advice = "one key has most of the records, or producers name the partition: spread the keys"
            yield Diagnosis("hot partition", "warning", found, advice)


def slow_consumers(interval: Interval) -> Iterator[Diagnosis]:
    lags = interval.values("headrace_group_lag_records")
    for series, seconds in interval.values("headrace_group_lag_seconds").items():
        lag = Series("headrace_group_lag_records", series.labels)
        growth = interval.growth(lag) / interval.seconds
        if seconds < LAG_SECONDS_SLOW:
            continue
        group, topic = series.label("group"), series.label("topic")
        trend = f"growing by {growth:,.0f}/s" if growth > 0 else "shrinking" if growth < 0 else "standing still"
        found = f"{group} is {seconds:,.0f} s and {lags.get(lag, 0):,.0f} records behind on {topic}, {trend}"
        advice = f"headrace groups describe {group}: add members, up to one per partition, or make each faster"
        yield Diagnosis("slow consumer", "warning" if growth <= 0 else "problem", found, advice)


def replication(interval: Interval) -> Iterator[Diagnosis]:
    refusing = interval.now("headrace_partitions_under_min_isr")
    behind = interval.now("headrace_partitions_under_replicated")
    lag = interval.now("headrace_replica_lag_records_max")
    if refusing or behind:
        found = f"{behind:.0f} partitions have replicas out of sync, up to {lag:,.0f} records"
        found += f"; {refusing:.0f} reject acks=all" if refusing else ""
        advice = "is a broker down? Else compare disk and event loop of the brokers: the slowest one delays acks=all"
        yield Diagnosis("replication", "problem" if refusing else "warning", found, advice)


def metadata_store(interval: Interval) -> Iterator[Diagnosis]:
    down = [series.label("operation") for series, up in interval.values("headrace_metadata_store_up").items() if not up]
    if "session" in down:
        age = interval.now("headrace_session_age_seconds")
        found = f"the session of this broker has not been confirmed for {age:.0f} s: no topic, leader or ISR can change"
        advice = "on all brokers: bring back a majority of etcd's members; on this one only: check its network"
        yield Diagnosis("metadata store", "problem", found, advice)
    elif "write" in down:
        found = "the latest write was rejected: no topic, leader or ISR can change"
        yield Diagnosis("metadata store", "problem", found, "the broker's log has the reason; is etcd out of space?")


def doors(interval: Interval) -> Iterator[Diagnosis]:
    """Reports overloaded REST and gRPC processes, which use one core each."""
    for part, name in (("gateway", "REST"), ("grpc", "gRPC")):
        used = interval.rate("process_cpu_seconds_total", part=part)
        if used >= CORE_FULL_SHARE:
            advice = "more of them: headrace gateway --bootstrap … on other ports; or fewer, larger requests"
            yield Diagnosis(name, "warning", f"its process uses {used:.0%} of a core", advice)
        waiting = interval.now("headrace_upstream_waiting_messages", part=part)
        if waiting >= WAITING_MESSAGES_MANY:
            found = f"{waiting:,.0f} messages wait for the broker"
            yield Diagnosis(name, "warning", found, "the broker is the bottleneck: see the other findings")


def errors(interval: Interval) -> Iterator[Diagnosis]:
    counted = interval.rates("headrace_request_errors_total")
    rates = {series: rate for series, rate in counted.items() if series.label("error") not in EXPECTED_ERRORS}
    if not rates:
        return
    worst = max(rates, key=lambda series: rates[series])
    if rates[worst] >= ERRORS_A_SECOND:
        found = f"{worst.label('api')} fails with {worst.label('error')}, {rates[worst]:,.1f} times per second"
        yield Diagnosis("errors", "warning", found, "responses have the reason: check the clients' logs")


RULES: tuple[Rule, ...] = (
    disk_space,
    offline_replicas,
    lost_markers,
    stray_directories,
    disk_speed,
    broker_core,
    late_loop,
    small_batches,
    slow_readers,
    request_memory,
    hot_partitions,
    slow_consumers,
    replication,
    metadata_store,
    doors,
    errors,
)
