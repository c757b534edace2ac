"""Detects dead brokers by broken and refused connections, before their sessions expire.

Each broker holds an idle connection to every other one. If a connection breaks and the port then refuses
connections, the process behind it has ended: its lease is revoked, which ends its session and its leaderships. A
paused or partitioned broker refuses no connections; it is detected by its session. A false detection costs an
election: the broker finds its session ended and begins another.

From the break until the election, Metadata shows no leader for the broker's partitions. A client detects a dead
leader as early as the other brokers do. As long as Metadata names that leader, librdkafka retries it and requests
metadata only 1 s later; for a partition without a leader, 0.1 s later. Therefore Metadata waits for the election,
which takes 0.15 s unless etcd needs a new leader first, and then shows no leader. The wait is short, because a
delayed response holds up the requests behind it on its connection.
"""

import asyncio
import logging
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import BrokerRegistration
from headrace.metadata.store import LeaseId, Store
from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.broker.server import Broker


RESPONSE_S_MAX = 0.25
# Two election timeouts of etcd by default, if its leader was on the same host, plus the brokers' own election.
ELECTION_S_MAX = 3.0


class Lost(NamedTuple):
    epoch: int  # broker epoch; a broker that has registered again is available
    replaced: asyncio.Event
    end: asyncio.TimerHandle


class BrokenConnections:
    def __init__(self) -> None:
        self._lost: dict[int, Lost] = {}
        self.node_ids: frozenset[int] = frozenset()

    def add(self, node_id: int, epoch: int, image: MetadataImage) -> None:
        """Marks a broker whose connection has broken, while it leads partitions and for `ELECTION_S_MAX` at most."""
        if node_id not in self._lost:
            end = asyncio.get_running_loop().call_later(ELECTION_S_MAX, self.remove, node_id)
            self._lost[node_id] = Lost(epoch, asyncio.Event(), end)
            self.node_ids = frozenset(self._lost)
            self.follow(image)

    def remove(self, node_id: int) -> None:
        """Removes the mark: the broker responds, its partitions have other leaders, or the time is over."""
        lost = self._lost.pop(node_id, None)
        if lost is not None:
            self.node_ids = frozenset(self._lost)
            lost.end.cancel()
            lost.replaced.set()

    def follow(self, image: MetadataImage) -> None:
        """Removes brokers that lead no partition in this image, or that have registered again."""
        for node_id, lost in list(self._lost.items()):
            known = image.brokers.get(node_id)
            if known is None or known.epoch != lost.epoch or not _leads(node_id, image):
                self.remove(node_id)

    async def wait_until_replaced(self, image: MetadataImage, topics: Iterable[str] | None) -> None:
        """Returns when lost brokers lead no partition of these topics (None: any topic), or after `RESPONSE_S_MAX`."""
        names = image.topics if topics is None else topics
        found = [image.topics[name] for name in names if name in image.topics]
        leaders = self._lost.keys() & {state.leader for topic in found for state in topic.partitions}
        with suppress(TimeoutError):
            async with asyncio.timeout(RESPONSE_S_MAX):
                for lost in [self._lost[node_id] for node_id in leaders]:
                    await lost.replaced.wait()

    def close(self) -> None:
        for node_id in list(self._lost):
            self.remove(node_id)


def _leads(node_id: int, image: MetadataImage) -> bool:
    return any(state.leader == node_id for topic in image.topics.values() for state in topic.partitions)


log = logging.getLogger(__name__)

LOOK_S = 0.5  # how often new brokers are looked up
CONNECT_S_MAX = 1.0
# After a crash and a quick restart, the port refuses connections until it is opened again; one attempt is not enough.
REFUSALS = 3
REFUSAL_REST_S = 0.03
STEADY_S = 0.05  # the port of a dying process may accept connections, which break sooner than this
REVOKE_AGAIN_S = 0.1  # each attempt has already waited for seconds


class BrokerFailureDetector:
    def __init__(self, broker: "Broker", store: Store) -> None:
        self._broker = broker
        self._store = store
        self._watches: dict[tuple[int, int], asyncio.Task[None]] = {}  # by broker id and epoch
        self._reached: set[tuple[int, int]] = set()  # brokers to which a connection has been open
        self._known: set[int] = set()
        self._looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._looking = asyncio.create_task(self._look(), name="neighbours")

    async def stop(self) -> None:
        tasks = [task for task in (self._looking, *self._watches.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _look(self) -> None:
        while True:
            live = {
                (one.node_id, one.epoch): one
                for one in self._broker.image.live_brokers().values()
                if one.node_id != self._broker.node_id
            }
            for key in self._watches.keys() - live.keys():
                self._watches.pop(key).cancel()
            self._reached &= live.keys()
            for key, neighbour in live.items():
                if key not in self._watches or self._watches[key].done():
                    self._watches[key] = asyncio.create_task(self._watch(neighbour))
            await asyncio.sleep(LOOK_S)

    async def _watch(self, neighbour: BrokerRegistration) -> None:
        """Watches a broker until its session has ended. Returns early if it was never reached."""
        name = self._broker.settings.internal_listener
        address = next(((one.host, one.port) for one in neighbour.endpoints if one.name == name), None)
        if address is None:
            return
        key = (neighbour.node_id, neighbour.epoch)
        loop = asyncio.get_running_loop()
        rest_s = REFUSAL_REST_S
        while True:
            connected_at = loop.time()
            if await self._until_closed(neighbour.node_id, *address):
                self._reached.add(key)
                self._broker.lost_brokers.add(*key, self._broker.image)
            elif key not in self._reached:
                return
            if await _refuses_always(*address):
                break
            # The kernel closes the connections of a killed process before its listening socket, so the port may accept
            # a moment longer. The interval grows for a broker that only closes its connections.
            if loop.time() - connected_at > LOOK_S:
                rest_s = REFUSAL_REST_S
            await asyncio.sleep(rest_s)
            rest_s = min(2 * rest_s, LOOK_S)
        log.warning("Broker %d refuses connections; ending its session", neighbour.node_id)
        while not await self._session_ended(neighbour) and await _refuses(*address):
            pass

    async def _until_closed(self, node_id: int, host: str, port: int) -> bool:
        """Returns True when an open connection is closed; False if none could be opened."""
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                reader, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError):
            return False
        self._tell_known(node_id)
        if (peer := writer.get_extra_info("peername")) is not None:
            self._broker.server.peer_addresses[node_id] = peer[0]
        steady = asyncio.get_running_loop().call_later(STEADY_S, self._broker.lost_brokers.remove, node_id)
        try:
            await reader.read(1)
        except ConnectionError:
            pass
        finally:
            steady.cancel()
            writer.close()
        return True

    def _tell_known(self, node_id: int) -> None:
        if node_id not in self._known:
            self._known.add(node_id)
            log.info("Connected to peer brokers: %s", ", ".join(str(one) for one in sorted(self._known)))

    async def _session_ended(self, neighbour: BrokerRegistration) -> bool:
        """Revokes the lease. Returns False if the store is unavailable: etcd's leader may have died with the broker."""
        image = self._broker.image
        lease = image.session_leases.get(neighbour.node_id)
        if not lease or image.brokers.get(neighbour.node_id, neighbour).epoch != neighbour.epoch:
            return True
        try:
            await self._store.revoke(LeaseId(lease))
        except HeadraceError as error:
            log.warning("the session of broker %d could not be ended yet: %s", neighbour.node_id, error)
            await asyncio.sleep(REVOKE_AGAIN_S)
            return False
        return True


async def _refuses_always(host: str, port: int) -> bool:
    for _ in range(REFUSALS):
        if not await _refuses(host, port):
            return False
        await asyncio.sleep(REFUSAL_REST_S)
    return True


async def _refuses(host: str, port: int) -> bool:
    try:
        async with asyncio.timeout(CONNECT_S_MAX):
            _, writer = await asyncio.open_connection(host, port)
    except ConnectionRefusedError:
        return True
    except (OSError, TimeoutError):
        return False
    writer.close()
    return False
