"""Notices at once that another broker's process is gone, instead of when its session runs out.

Each broker holds an idle connection to every other. One that breaks, at a port that then refuses to be connected to,
had a process behind it that has none now: its lease is revoked, and with it go its session and its leaderships. A
broker that is paused or cut off shows nothing of the kind; for those there is the session.

From the break until then, Metadata shows no leader for its partitions (`broker/lost_brokers.py`).

Decides when a broker is gone. Being wrong costs an election and nothing else: the broker finds its session over, and
begins another.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.core.cluster.values import BrokerInfo
from headrace.metadata.store import LeaseId, Store
from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.broker.broker import Broker

log = logging.getLogger(__name__)

LOOK_S = 0.5  # how often new brokers are looked for
CONNECT_S_MAX = 1.0
# A port that is being opened again, after a crash and a quick restart, refuses for longer than one try.
REFUSALS = 3
REFUSAL_REST_S = 0.03
STEADY_S = 0.05  # the port of a process that is being killed may accept connections, which break sooner
REVOKE_AGAIN_S = 0.1  # each attempt has waited for seconds already


class Neighbours:
    def __init__(self, broker: "Broker", store: Store) -> None:
        self._broker = broker
        self._store = store
        self._watches: dict[tuple[int, int], asyncio.Task[None]] = {}  # by id and epoch
        self._reached: set[tuple[int, int]] = set()  # those that a connection was open to
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

    async def _watch(self, neighbour: BrokerInfo) -> None:
        """Until it is gone, or cannot be reached: of one that was never reached, nothing can be said."""
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
            # The kernel closes the connections of a killed process before its listening socket: the port may accept a
            # moment longer. A broker that only closes its connections is asked less and less often.
            if loop.time() - connected_at > LOOK_S:
                rest_s = REFUSAL_REST_S
            await asyncio.sleep(rest_s)
            rest_s = min(2 * rest_s, LOOK_S)
        log.warning("Broker %d refuses connections; ending its session", neighbour.node_id)
        while not await self._session_ended(neighbour) and await _refuses(*address):
            pass

    async def _until_closed(self, node_id: int, host: str, port: int) -> bool:
        """Returns when a connection is closed; False if there was none."""
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

    async def _session_ended(self, neighbour: BrokerInfo) -> bool:
        """False if the store could not be asked: etcd's leader may have died with the broker."""
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
