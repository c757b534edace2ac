"""Membership of this broker in a cluster: session, metadata watch, fetchers, ISR changes and controller lease.

Started after the logs are open and before client listeners; stopped in the opposite order.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.broker.controller.active_controller import ActiveController
from headrace.broker.controller.broker_lifecycle import BrokerLifecycleManager
from headrace.broker.replication.alter_partition_manager import AlterPartitionManager
from headrace.broker.replication.replica_fetcher_manager import ReplicaFetcherManager
from headrace.broker.replication.replica_health import ReplicaHealthMonitor
from headrace.broker.replication.replication_quota_manager import ReplicationQuotaManager
from headrace.core.image.deltas import MetadataDelta
from headrace.metadata.store import Store
from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.broker.server import Broker

log = logging.getLogger(__name__)

# How long a controlled shutdown waits for elections. An election takes milliseconds; thousands complete in a second.
HAND_OVER_S_MAX = 10.0


class Membership:
    def __init__(self, broker: "Broker", store: Store) -> None:
        self._broker = broker
        self._session = BrokerLifecycleManager(store, broker)
        self._control = ActiveController(broker.controller, self._session, broker.settings)
        self.isr_keeper = AlterPartitionManager(broker)
        self.throttles = ReplicationQuotaManager(broker)
        self._health = ReplicaHealthMonitor(broker, self._session)
        self._fetchers = ReplicaFetcherManager(broker, broker.connect, self.throttles)
        self._watch: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._is_working = False
        self.superseded = asyncio.Event()  # set when another process has registered with this broker's id
        self.is_isolated = False  # the other brokers have no session of this one, or none of them responds

    async def start(self) -> None:
        self._watch = asyncio.create_task(self._broker.controller.follow(), name="watch")
        await self._health.leave_damaged()
        await self._health.look_at_disk()
        await self._session.begin()
        self._session.keep(self.superseded.set)
        self._is_working = True
        self.throttles.start()
        self._fetchers.start()
        self.isr_keeper.start()
        self._control.start()
        self._health.start()

    def follow(self, event: MetadataDelta) -> None:
        if not self._is_working:
            return  # tasks that start now would outlive the stop
        self.throttles.follow(event)
        self._fetchers.follow(event)
        self.isr_keeper.follow(event)
        self._control.follow(event)
        self._news.set()

    async def controlled_shutdown(self) -> None:
        """Requests that other brokers take over leadership. Returns when they have, or after `HAND_OVER_S_MAX`."""
        if not self._broker.settings.flag("controlled.shutdown.enable"):
            return
        if self.may_be_fenced:
            log.warning("stopping without handing over: this broker has no session, others lead already or soon")
            return
        try:
            async with asyncio.timeout(HAND_OVER_S_MAX):
                await self._session.begin_controlled_shutdown()
                while self._others_could_lead():
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            log.warning("stopping although this broker still leads partitions")
        except HeadraceError as error:
            log.warning("stopping without handing over: %s", error)

    def _others_could_lead(self) -> bool:
        image, me = self._broker.image, self._broker.node_id
        able = {one.node_id for one in image.live_brokers().values() if not one.is_stopping} - {me}
        return any(
            state.leader == me and not able.isdisjoint(state.isr)
            for topic in image.topics.values()
            for state in topic.partitions
        )

    async def stop(self) -> None:
        """Stops replication, ISR changes and the controller."""
        self._is_working = False
        await self._health.stop()
        await self._control.stop()
        await self.isr_keeper.stop()
        await self._fetchers.stop()

    @property
    def may_be_fenced(self) -> bool:
        """Whether this broker's session may have expired, so that others may lead its partitions already."""
        return self._session.lease is None

    @property
    def session_age_ms(self) -> int:
        return self._session.age_ms

    async def leave(self) -> None:
        """Ends the session. The last step of a shutdown, after the logs are closed."""
        await self._session.end()
        if self._watch is not None:
            self._watch.cancel()
            await asyncio.gather(self._watch, return_exceptions=True)
        await self._broker.controller.stop()  # for the listeners of the watch's last changes
