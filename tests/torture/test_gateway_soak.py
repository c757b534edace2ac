"""Clients of every kind of REST and gRPC, which hang up at any moment, while the processes behind them are killed.

Nothing acknowledged is lost or changed, nothing comes again after its commit was acknowledged, no commit covers what
no client has received, and the processes have as many threads and files, and about as much memory, as before.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import httpx
import psutil
import pytest
from confluent_kafka import Consumer, TopicPartition

from headrace.testing import LocalBroker
from tests.integration.gateway.test_supervision import GRPC, REST, companion_of
from tests.patience import until
from tests.torture.gateway_clients import (
    CALLS,
    EVENTS,
    POLLS,
    SESSION_MS,
    Auditor,
    Client,
    Follower,
    GroupListener,
    Poller,
    RestWriter,
    RpcConsumer,
    RpcWriter,
    TopicListener,
)
from tests.torture.gateway_history import PARTITIONS, TOPIC, GatewayHistory, payload
from tests.torture.plan import SOAK_MINUTES, Dice
from tests.torture.stage import GROUP_SETTINGS

# A group of which a process has been killed waits for its sessions to end; the broker may have to be restarted first.
SECONDS_MAX = 180.0
PROGRESS = 40  # records or messages of every client, between two faults
# Threads of the event loop's pool and connections that are kept stay when their work is done.
THREADS_KEPT_MAX = 16
FILES_KEPT_MAX = 64
MEMORY_KEPT_MAX_BYTES = 96 * 1024 * 1024
# In `make test`: so many rounds without a fault, then each fault once.
ROUNDS = 2
SETTINGS = {**GROUP_SETTINGS, "session_timeout_ms": str(SESSION_MS)}


class Level(NamedTuple):
    threads: int
    files: int
    memory_bytes: int


class Soak:
    """The clients, whose offsets outlive them, and the processes that serve them."""

    def __init__(self, broker: LocalBroker, dice: Dice) -> None:
        self.broker, self._dice = broker, dice
        self.history = GatewayHistory([POLLS, EVENTS, CALLS])
        self._offsets = {TopicListener: [0] * PARTITIONS, Follower: [0] * PARTITIONS}
        self.clients: list[Client] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        """Ends when all readers have received everything that is there."""
        self.clients = self._new_clients()
        writers = [one for one in self.clients if isinstance(one, RestWriter | RpcWriter)]
        for one in self.clients:
            one.start()
        try:
            yield
            self._end(writers)
            self._wait_for_all()
        finally:
            self._end(self.clients)
        assert self._failures() == []

    def _new_clients(self) -> list[Client]:
        kinds = [RestWriter, RestWriter, RpcWriter, Poller, Poller, GroupListener, GroupListener]
        kinds += [RpcConsumer, RpcConsumer, Auditor]
        clients = [kind(f"{kind.__name__} {place}", *self._common()) for place, kind in enumerate(kinds)]
        for kind, offsets in self._offsets.items():
            clients.append(kind(kind.__name__, *self._common(), offsets=offsets))
        return clients

    def _common(self) -> tuple[str, str, GatewayHistory, Dice]:
        dice = Dice(self._dice.randrange(2**32))
        return self.broker.http_url, self.broker.grpc_address, self.history, dice

    def _end(self, clients: list[Client]) -> None:
        for one in clients:
            one.stop()
        for one in clients:
            one.join(SECONDS_MAX)
        assert [one.name for one in clients if one.is_alive()] == [], "clients end when they are told to"

    def _failures(self) -> list[str]:
        return [failure for one in self.clients for failure in one.failures] + self.history.violations

    def get_on(self) -> None:
        """Until every client has sent or received some more."""
        wanted = {one: one.progress + (1 if isinstance(one, Auditor) else PROGRESS) for one in self.clients}

        def behind() -> list[str]:
            return [one.name for one, count in wanted.items() if one.progress < count]

        until(lambda: self._failures() or not behind(), lambda: f"{behind()} get on", SECONDS_MAX)
        assert self._failures() == []

    def _ends(self) -> list[int]:
        rows = self._described(f"/topics/{TOPIC}")["partition_list"]
        return [row["end_offset"] for row in rows]

    def _described(self, path: str) -> dict[str, list[dict[str, int]]]:
        answer = httpx.get(f"{self.broker.http_url}{path}", timeout=SECONDS_MAX)
        assert answer.status_code == 200, answer.text
        found: dict[str, list[dict[str, int]]] = answer.json()
        return found

    def _received(self) -> dict[str, list[int]]:
        groups = {name: self.history.received(name) for name in (POLLS, EVENTS, CALLS)}
        return groups | {kind.__name__: list(offsets) for kind, offsets in self._offsets.items()}

    def _wait_for_all(self) -> None:
        """Groups whose members come and go take their time; each must get on all the time."""
        ends = self._ends()
        while (before := self._behind(ends)) and not self._failures():
            until(
                lambda: self._failures() or all(now != before.get(name) for name, now in self._now(before)),
                lambda: f"all get on to {ends}: {self._behind(ends)}",
                SECONDS_MAX,
            )

    def _now(self, names: Iterable[str]) -> list[tuple[str, list[int]]]:
        received = self._received()
        return [(name, received[name]) for name in names]

    def _behind(self, ends: list[int]) -> dict[str, list[int]]:
        return {name: offsets for name, offsets in self._received().items() if offsets != ends}

    def levels(self) -> dict[str, Level]:
        """Of the processes of REST and gRPC, when no group has a member any more."""
        for group in (POLLS, EVENTS, CALLS):
            path = f"/api/v1/groups/{group}"
            until(lambda path=path: not self._described(path)["members"], f"{group} is empty", SECONDS_MAX)  # type: ignore[misc]
        return {module: level_of(companion_of(self.broker, module)) for module in (REST, GRPC)}

    def check_levels(self, initial: dict[str, Level]) -> None:
        def grown() -> list[str]:
            now = self.levels()
            print({module: (initial[module], now[module]) for module in initial})
            return [module for module, level in initial.items() if not is_like(now[module], level)]

        until(lambda: not grown(), lambda: f"{grown()} return to {initial}", SECONDS_MAX)

    def check_log(self) -> None:
        """Each number is there once, as it was sent; each acknowledged one where it was said to be."""
        consumer = Consumer({"bootstrap.servers": self.broker.bootstrap, "group.id": "judge", "log_level": 0})
        consumer.assign([TopicPartition(TOPIC, partition, 0) for partition in range(PARTITIONS)])
        left, stored = sum(self._ends()), dict[bytes, tuple[int, int]]()
        while left:
            for message in consumer.consume(min(left, 1_000), SECONDS_MAX):
                assert message.error() is None
                assert message.value() not in stored, "a number is stored once"
                stored[message.value()] = (message.partition(), message.offset())
                left -= 1
        consumer.close()
        lost = [number for number in self.history.placed if payload(number) not in stored]
        assert lost == [], "acknowledged, and not there"
        moved = [
            number
            for number, (partition, offset) in self.history.placed.items()
            if stored[payload(number)] != (partition, stored[payload(number)][1] if offset is None else offset)
        ]
        assert moved == [], "acknowledged, and not at its offset"
        print(f"{len(stored)} records, {len(self.history.placed)} of them acknowledged")


def level_of(process: psutil.Process) -> Level:
    return Level(process.num_threads(), process.num_fds(), process.memory_info().rss)


def is_like(now: Level, initial: Level) -> bool:
    return (
        now.threads <= initial.threads + THREADS_KEPT_MAX
        and now.files <= initial.files + FILES_KEPT_MAX
        and now.memory_bytes <= initial.memory_bytes + MEMORY_KEPT_MAX_BYTES
    )


def rounds(minutes: float, otherwise: int) -> Iterator[int]:
    """So many in a test run, or until so many minutes have passed."""
    deadline = time.monotonic() + minutes * 60
    number = 0
    while time.monotonic() < deadline if SOAK_MINUTES else number < otherwise:
        yield number
        number += 1


@pytest.mark.slow
@pytest.mark.timeout(600 + SOAK_MINUTES * 120)
def test_clients_of_every_kind_lose_and_repeat_nothing_acknowledged(dice: Dice, tmp_path: Path) -> None:
    with LocalBroker(gateway=True, data_dir=tmp_path, settings=SETTINGS) as broker:
        httpx.get(f"{broker.http_url}/ready", timeout=SECONDS_MAX)
        body = {"name": TOPIC, "partitions": PARTITIONS}
        httpx.post(f"{broker.http_url}/topics", json=body, timeout=SECONDS_MAX).raise_for_status()
        soak = Soak(broker, dice)
        with soak.running():
            soak.get_on()
        initial = soak.levels()
        with soak.running():
            for _ in rounds(SOAK_MINUTES / 2, ROUNDS):
                soak.get_on()
        soak.check_levels(initial)
        faults: list[Callable[[], object]] = [
            lambda: companion_of(broker, REST).kill(),
            lambda: companion_of(broker, GRPC).kill(),
            lambda: companion_of(broker, REST).terminate(),
            lambda: (broker.kill(), broker.start()),
            broker.restart,
        ]
        with soak.running():
            for number in rounds(SOAK_MINUTES / 2, len(faults)):
                if number % len(faults) == 0:
                    dice.shuffle(faults)
                faults[number % len(faults)]()
                soak.get_on()
        soak.check_log()
