"""Whether headrace's event loop waits for its disk: the longest stall while every sync takes half a second.

A preloaded library (`bench/slow_disk.c`) delays fsync and fdatasync, and lists those that the loop's own thread calls.
The disk is fast while the broker starts and stops: only then does the loop's thread sync by itself. Session renewals
and the requests of all clients run on this loop.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from bench import tools, topics
from bench.brokers import Broker, Served
from bench.cases.loop_lag import LAG_FILE_VARIABLE, bare_timer, read_bare_lags, read_lags
from bench.clients import Figures
from bench.clusters import ThreadSyncsCluster
from bench.headrace_node import Headrace
from bench.ledger import Case
from bench.plan import Plan
from bench.processes import BenchError
from bench.runner import Bench, Group

SYNC_MS = 500
_PARTITIONS = 50
_TOPIC = "slow"
_TIMEOUT_S = 120.0  # some requests wait for dozens of syncs
_SMALL_SEGMENTS = {"segment.bytes": str(2**20)}
_THREADS_SYNC = {"log.flush.io.uring.enable": "false"}  # what io_uring does passes by a preloaded library
_SHOWN = ("lag_p99", "lag_max", "own_lag_max", "bare_lag_max", "loop_syncs")


class SlowDisk:
    def __init__(self, work: Path) -> None:
        self._flag, self._log = work / "slow-disk.flag", work / "slow-disk.log"
        self._log.unlink(missing_ok=True)
        self.env = {
            "LD_PRELOAD": str(tools.library("slow_disk")),
            "SLOW_DISK_FLAG": str(self._flag),
            "SLOW_DISK_LOG": str(self._log),
            "SLOW_DISK_MS": str(SYNC_MS),
        }

    @contextmanager
    def slow(self) -> Iterator[None]:
        self._flag.touch()
        try:
            yield
        finally:
            self._flag.unlink()

    def loop_syncs(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []


def _produce(broker: Served, count: int, size: int = 100) -> None:
    conf = {"bootstrap.servers": broker.bootstrap, "acks": "all", "linger.ms": 5, "log_level": 0}
    producer = Producer(conf)
    for number in range(count):
        producer.produce(_TOPIC, b"x" * size, partition=number % 2)
        producer.poll(0.001)
    if producer.flush(_TIMEOUT_S):
        raise BenchError("records were not acknowledged")


def _create(broker: Served, configs: dict[str, str] | None = None) -> None:
    topics.create(broker.bootstrap, [_TOPIC], _PARTITIONS, configs or {}, broker.replicas)


def _nothing(broker: Served) -> None:
    """No topic has to be there before."""


def _some_records(broker: Served) -> None:
    _create(broker, _SMALL_SEGMENTS)
    _produce(broker, 500, 10_000)


def _steady(broker: Served) -> None:
    _produce(broker, 1_000)


def _rolls(broker: Served) -> None:
    _produce(broker, 1_000, 10_000)


def _drop(broker: Served) -> None:
    topics.delete(broker.bootstrap, [_TOPIC])


def _delete_records(broker: Served) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    for future in admin.delete_records([TopicPartition(_TOPIC, index, 200) for index in range(2)]).values():
        future.result(_TIMEOUT_S)


Act = Callable[[Served], None]
_SLOW = f"every sync takes {SYNC_MS} ms"
_SCENARIOS: tuple[tuple[Case, Act, Act], ...] = (
    (Case("slow-disk/produce", "Slow disk, produce", f"acks=all to 2 partitions, {_SLOW}"), _create, _steady),
    (Case("slow-disk/roll", "Slow disk, segments roll", f"acks=all, at 1 MiB, {_SLOW}"), _some_records, _rolls),
    (Case("slow-disk/create", "Slow disk, topic created", f"{_PARTITIONS} partitions, {_SLOW}"), _nothing, _create),
    (
        Case("slow-disk/delete", "Slow disk, topic deleted", f"{_PARTITIONS} partitions, {_SLOW}"),
        _some_records,
        _drop,
    ),
    (
        Case("slow-disk/delete-records", "Slow disk, DeleteRecords", f"2 partitions of several segments, {_SLOW}"),
        _some_records,
        _delete_records,
    ),
)
_FAILOVER = Case("slow-disk/failover", "Slow disk, failover", f"a node of 3 killed, {_SLOW} on the others too")


def _slow_disk(bench: Bench) -> None:
    ours = [kind for kind in bench.kinds if kind is Headrace]
    for case, before, act in _SCENARIOS:

        def measure(kind: type[Broker], before: Act = before, act: Act = act) -> Figures:
            with bench.fresh(kind, _THREADS_SYNC) as broker:
                return _measured(bench, broker, [broker], before, act)

        bench.alternate(case, ours, measure, bench.repeat_long)
    bench.alternate(_FAILOVER, ours, lambda _: _failover(bench), bench.repeat_long)


def _failover(bench: Bench) -> Figures:
    """The others begin new leader epochs, truncate, fetch and write with a slow disk."""
    cluster = ThreadSyncsCluster(bench.processes, bench.new_home("slow-disk"))

    def leader_dies(_: Served) -> None:
        cluster.nodes[topics.leader(cluster.bootstrap, _TOPIC)].kill()
        _produce(cluster, 500)
        time.sleep(bench.scale.steady_seconds)

    try:
        return _measured(bench, cluster, list(cluster.nodes.values()), _create, leader_dies)
    finally:
        cluster.remove()


def _measured(bench: Bench, served: Served, nodes: list[Broker], before: Act, act: Act) -> Figures:
    disk = SlowDisk(bench.work)
    for node in nodes:
        node.env |= {**disk.env, LAG_FILE_VARIABLE: str(node.home / "lag.json")}
        node.spawn()
    for node in nodes:
        node.wait_until_ready()
    before(served)
    with bare_timer(bench) as bare_file, disk.slow():
        act(served)
    lags = [read_lags(node.home / "lag.json") for node in nodes if _is_stopped(node)]
    figures = {name: max(lag[name] for lag in lags) for name in lags[0]}
    if disk.loop_syncs():
        bench.progress.say(f"syncs on the event loop: {', '.join(sorted(set(disk.loop_syncs())))}")
    figures |= {**read_bare_lags(bare_file), "loop_syncs": float(len(disk.loop_syncs()))}
    return {name: figures[name] for name in _SHOWN}


def _is_stopped(node: Broker) -> bool:
    """Whether it was running until now; a node that was killed wrote nothing."""
    was_running = node.is_running
    node.stop()
    return was_running


def _samples(plan: Plan) -> int:
    return (len(_SCENARIOS) + 1) * plan.repeat_long * (Headrace in plan.kinds)


SLOW_DISK = Group("slow-disk", "Event loop on a slow disk", _slow_disk, _samples)
