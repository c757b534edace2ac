"""Controller loop: acquires the controller lease when it is free, and elects leaders while this broker holds it.

Runs on every broker; only the active controller elects. Decisions are pure
(`core/controller/replication_control.py`). Elections for unavailable leaders compare the controller record at the
commit, so a broker that has lost the lease changes nothing. Preferred leader elections compare only the partition
states.
"""

import asyncio
import logging
from typing import TYPE_CHECKING

from headrace.config.settings import Settings
from headrace.core.image.deltas import (
    BrokerRegistered,
    ControllerChanged,
    MetadataDelta,
    PartitionsAdded,
    SessionChanged,
    TopicCreated,
)
from headrace.core.image.model import NO_CONTROLLER
from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.broker.controller.broker_lifecycle import BrokerLifecycleManager
    from headrace.broker.controller.controller import Controller

log = logging.getLogger(__name__)

RETRY_S = 0.2
# Interval at which the lease and the partitions are checked without an event, so that failed work is retried.
LOOK_S = 2.0


class ActiveController:
    def __init__(self, controller: "Controller", session: "BrokerLifecycleManager", settings: Settings) -> None:
        self._controller = controller
        self._session = session
        self._node_id = settings.node_id
        self._balances = settings.flag("auto.leader.rebalance.enable")
        self._balance_every_s = settings.integer("leader.imbalance.check.interval.seconds")
        self._balance_at_s = 0.0
        self._wake = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._wake.set()
        self._balance_at_s = asyncio.get_running_loop().time() + self._balance_every_s
        self._task = asyncio.create_task(self._run(), name="control loop")

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    def follow(self, event: MetadataDelta) -> None:
        # A registration ends the session of the broker's former process. New partitions were assigned to brokers that
        # had a session when another broker decided it; that session may have expired.
        if isinstance(event, BrokerRegistered | SessionChanged | ControllerChanged | TopicCreated | PartitionsAdded):
            self._wake.set()

    async def _run(self) -> None:
        while True:
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._wake.wait()
            except TimeoutError:
                pass
            self._wake.clear()
            try:
                await self._look()
            except HeadraceError as error:
                log.info("not done as controller: %s", error)
                self._wake.set()
                await asyncio.sleep(RETRY_S)
            except Exception:
                log.exception("the controller's work failed")
                await asyncio.sleep(RETRY_S)

    async def _look(self) -> None:
        controller = self._controller
        lease = self._session.lease
        if (
            controller.image.controller == NO_CONTROLLER
            and lease is not None
            and await controller.claim_controller(lease)
        ):
            log.info("broker %d is the controller now", self._node_id)
        if controller.image.controller == self._node_id:
            await controller.states.elect_where_needed()
            await self._balance_when_due()

    async def _balance_when_due(self) -> None:
        """Runs the preferred leader election when it is due: after a failover, leadership is unevenly distributed."""
        now_s = asyncio.get_running_loop().time()
        if not self._balances or now_s < self._balance_at_s:
            return
        self._balance_at_s = now_s + self._balance_every_s
        moved = await self._controller.states.maybe_balance_partition_leaders()
        if moved:
            log.info("the first replicas of %d partitions lead them again", moved)
