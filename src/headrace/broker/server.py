"""Broker: creates the components of one node, and starts and stops them in order."""

import asyncio
import logging
import socket
from collections.abc import Iterable
from functools import partial
from typing import TYPE_CHECKING
from uuid import uuid4

from headrace.broker.api.pipeline import HotHandler, RequestPipeline
from headrace.broker.controller.controller import Controller
from headrace.broker.controller.failure_detector import BrokenConnections
from headrace.broker.controller.restored_metadata import raise_leader_epochs, raise_producer_ids
from headrace.broker.coordinator.producer_id_manager import ProducerIdManager
from headrace.broker.handlers.data.fetch import FetchHandler
from headrace.broker.handlers.data.produce import ProduceHandler
from headrace.broker.log.disk_space import DiskSpaceGuard
from headrace.broker.metrics import BrokerMetrics
from headrace.broker.network.inter_broker_client import Peers
from headrace.broker.network.socket_server import Server
from headrace.broker.replica.flush_backends import open_ring
from headrace.broker.replica.log_flusher import LogFlusher
from headrace.broker.replica.replica_manager import ReplicaManager
from headrace.broker.runtime.shutdown_steps import StopSteps
from headrace.broker.scheduler import Scheduler
from headrace.config.settings import Listener, Settings
from headrace.core.controller.cluster_control import DuplicateBroker
from headrace.core.fetch_session import FetchSessionCache
from headrace.core.image.deltas import MetadataDelta
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.topic import OFFSETS_TOPIC, TRANSACTIONS_TOPIC
from headrace.metadata.instrumented_store import ObservedStore, StoreMetrics
from headrace.metadata.store import OutcomeUnknown, Store, Unavailable
from headrace.model.clock import Clock
from headrace.model.errors import HeadraceError
from headrace.protocol.api import ApiKey
from headrace.security.authorization import AllowAll, Authorizer
from headrace.storage.directory.log_directory import LogDirectory
from headrace.storage.directory.partition_metadata_file import uuid_to_text
from headrace.storage.io.file_system import FileSystem, OsFileSystem

if TYPE_CHECKING:
    from headrace.broker.coordinator.group_coordinator import GroupCoordinatorService
    from headrace.broker.coordinator.transaction_coordinator import TransactionCoordinator
    from headrace.broker.replication.membership import Membership
    from headrace.client.aio.broker_connection import Peer
    from headrace.core.group.coordinator_shard import GroupCoordinatorShard
    from headrace.core.transaction.metadata import TransactionMetadata

log = logging.getLogger(__name__)

# Added to the session timeout: every expired session has ended by then, also in a metadata store that rounds up.
DUPLICATE_GRACE_S = 2.0
REGISTER_AGAIN_S = 0.1
# A stop waits no longer than this for an unavailable metadata store; etcd elects a leader within it.
COUNT_STOP_S_MAX = 3.0


class Broker:
    """`shares_store`: other brokers use the same metadata store, so this one is a member of a cluster."""

    def __init__(
        self, settings: Settings, clock: Clock, files: FileSystem, store: Store, *, shares_store: bool = False
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.files = files
        self.figures = BrokerMetrics()
        self.authorizer: Authorizer = AllowAll()
        self.store_figures = StoreMetrics()
        store = ObservedStore(store, self.store_figures)
        self.controller = Controller(store, settings, clock)
        self.log_dir = LogDirectory(files, settings.data_dir)
        self.reserve = DiskSpaceGuard(files, settings.data_dir)
        self.log_dir.may_preallocate = self.reserve.may_preallocate
        loop = asyncio.get_running_loop()
        self.group_commit = None if settings.in_memory else self._new_group_commit(loop)
        self.partitions = ReplicaManager(self.log_dir, clock, settings.node_id, self.group_commit)
        self.producer_ids = ProducerIdManager(self.controller)
        self.peers = Peers(self)
        self.fetch_sessions = FetchSessionCache(settings.integer("max.incremental.fetch.session.cache.slots"))
        self.produce = ProduceHandler(self)
        hot: dict[ApiKey, HotHandler] = {
            ApiKey.PRODUCE: self.produce,
            ApiKey.FETCH: FetchHandler(self, self.fetch_sessions),
        }
        self.dispatcher = RequestPipeline(self, hot)
        self.server = Server(settings, self.dispatcher, clock)
        self._housekeeper = Scheduler(self, self.produce)
        self._groups: GroupCoordinatorService | None = None
        self._transactions: TransactionCoordinator | None = None
        self.lost_brokers = BrokenConnections()
        self.membership = self._new_membership(store) if shares_store else None

    def _new_membership(self, store: Store) -> "Membership":
        from headrace.broker.replication.membership import Membership

        return Membership(self, store)

    def _new_group_commit(self, loop: asyncio.AbstractEventLoop) -> LogFlusher:
        wanted = self.settings.flag("log.flush.io.uring.enable") and isinstance(self.files, OsFileSystem)
        return LogFlusher(loop, open_ring() if wanted else None)

    def coordinator_load_errors(self) -> dict[str, HeadraceError]:
        """Returns the internal partitions that this broker leads and cannot load, with the error of the last try."""
        coordinators = [one.runtime for one in (self._groups, self._transactions) if one is not None]
        shards = [shard for runtime in coordinators for shard in runtime.led()]
        return {str(shard.partition): shard.load_error for shard in shards if shard.load_error is not None}

    async def connect(self, node_id: int) -> "Peer":
        """Connects to another broker, on its inter-broker listener."""
        from headrace.client.aio.broker_connection import ConnectionLost, TcpPeer

        known = self.image.brokers.get(node_id)
        name = self.settings.internal_listener
        for endpoint in known.endpoints if known is not None else ():
            if endpoint.name == name:
                return await TcpPeer.connect(endpoint.host, endpoint.port)
        raise ConnectionLost(f"broker {node_id} has no listener {name}")

    @property
    def image(self) -> MetadataImage:
        return self.controller.image

    @property
    def node_id(self) -> int:
        return self.settings.node_id

    @property
    def groups(self) -> "GroupCoordinatorService":
        """Created when first needed: a broker that only receives records starts without it."""
        return self._groups or self._start_groups()

    def _start_groups(self) -> "GroupCoordinatorService":
        from headrace.broker.coordinator.group_coordinator import GroupCoordinatorService

        self._groups = GroupCoordinatorService(self)
        self._groups.start()
        return self._groups

    @property
    def transactions(self) -> "TransactionCoordinator":
        """Created when first needed, or at the start if transactions may have been left open."""
        return self._transactions or self._start_transactions()

    def _start_transactions(self) -> "TransactionCoordinator":
        from headrace.broker.coordinator.transaction_coordinator import TransactionCoordinator

        self._transactions = TransactionCoordinator(self)
        self._transactions.start()
        return self._transactions

    def known_group_machines(self) -> "list[GroupCoordinatorShard]":
        """Returns the state machines of the groups that this broker coordinates. Does not start the coordinator."""
        return [] if self._groups is None else [shard.machine for shard in self._groups.runtime.shards()]

    def known_transactions(self) -> "Iterable[TransactionMetadata]":
        return () if self._transactions is None else self._transactions.all()

    def size_of_cluster(self) -> int:
        """Returns the number of brokers, including those that have not registered yet or are unavailable."""
        return max(len(self.image.brokers), len(self.settings.cluster.initial_members), 1)

    def check_free_space(self, size: int) -> None:
        """Raises DiskFull if writing `size` more bytes would use the disk space reserve."""
        self.reserve.check(size)

    async def start(self) -> None:
        """Returns when clients are served."""
        self.server.bind()
        await self._register()
        self.partitions.load(self.image, self.controller.broker_configs(), self.controller.deleted_topic_ids())
        for follow in (self._follow, self._follow_in_cluster, self._follow_in_groups, self._follow_in_transactions):
            self.controller.on_change(follow)  # separate listeners: if one fails, the others still receive the event
        # Before a session begins: no replica may lead in an epoch that its log already contains.
        await raise_leader_epochs(self)
        await raise_producer_ids(self)
        self.partitions.end_recovery()
        if self.membership is not None:
            await self.membership.start()
        if OFFSETS_TOPIC in self.image.topics:
            self._start_groups()
        self.server.serve()
        self._housekeeper.start()
        if TRANSACTIONS_TOPIC in self.image.topics:
            self._start_transactions()

    async def _register(self) -> None:
        directory = self.log_dir.directory_id(uuid4())
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self.settings.integer("broker.session.timeout.ms") / 1000 + DUPLICATE_GRACE_S
        while True:
            try:
                await self.controller.start(
                    self.advertised(),
                    unclean=not self.log_dir.was_clean,
                    same_boot_as_last_run=self.log_dir.same_boot_as_last_run,
                    acked_unsynced=self.log_dir.acked_unsynced_before,
                    directory=uuid_to_text(directory),
                    incarnation=self.log_dir.incarnation,
                    registrations=self.log_dir.registrations,
                    count_registration=self.log_dir.count_registration,
                    alone=self.membership is None,
                    check_cluster=self._check_cluster,
                )
                break
            except DuplicateBroker:
                if loop.time() > give_up_s:
                    raise
                await asyncio.sleep(REGISTER_AGAIN_S)  # the former process may be gone with its session not expired yet
            except (Unavailable, OutcomeUnknown) as error:
                if self.membership is None:
                    raise  # no other node can make this node's own store available
                log.warning("waiting for the cluster's store: %s", error)
                await asyncio.sleep(REGISTER_AGAIN_S)
        self.log_dir.claim(self.image.cluster_id, self.node_id, directory)

    async def _check_cluster(self, cluster_id: str) -> None:
        self.log_dir.check_owner(cluster_id, self.node_id)
        if self.membership is not None:
            from headrace.broker.controller.clock_skew import check_clock

            await check_clock(self)

    async def _follow(self, event: MetadataDelta) -> None:
        # Checked first: the image is ahead of the events, and a state with this broker's id may be meant for the other
        # process.
        if self.membership is not None and self.controller.is_superseded and not self.membership.superseded.is_set():
            log.critical("Another process has registered with broker id %d; shutting down", self.node_id)
            self.partitions.fence()
            self.membership.superseded.set()
        self.figures.replication.follow(event, self.partitions, self.node_id)
        await self.partitions.follow(event, self.image, self.controller.broker_configs())

    async def _follow_in_cluster(self, event: MetadataDelta) -> None:
        self.lost_brokers.follow(self.image)
        if self.membership is not None:
            self.membership.follow(event)

    async def _follow_in_groups(self, event: MetadataDelta) -> None:
        if self._groups is not None:
            self._groups.follow(event)

    async def _follow_in_transactions(self, event: MetadataDelta) -> None:
        if self._transactions is not None:
            self._transactions.follow(event)

    def advertised(self) -> tuple[Listener, ...]:
        """Returns the addresses for clients: the advertised listeners, or the bound ones with their actual ports."""
        if self.settings.advertised:
            return self.settings.advertised
        return tuple(
            Listener(one.name, one.host or socket.gethostname(), one.port) for one in self.server.bound.values()
        )

    async def _count_stop(self) -> None:
        try:
            async with asyncio.timeout(COUNT_STOP_S_MAX):
                await self.controller.count_stop(self.log_dir.count_registration)
        except (HeadraceError, TimeoutError) as error:
            log.warning(
                "Clean stop not counted; a copy of the data directory that was made during this run might not be "
                "recognized as an older one: %s",
                error or "the metadata store did not respond in time",
            )

    async def stop(self) -> None:
        """Sends no more responses, and closes all files for the next start. Also callable after a failed start.

        Every step runs even if an earlier one failed. The first failure is raised at the end.
        """
        steps = StopSteps()
        membership = self.membership
        if membership is not None:
            await steps.run(membership.controlled_shutdown)
        await steps.run(self.server.close)
        if membership is not None:
            await steps.run(membership.stop)
            await steps.run(self.peers.close)
        await steps.run(self.produce.close)
        await steps.run(self._housekeeper.stop)
        if self._groups is not None:
            await steps.run(self._groups.close)
        await steps.run(self.dispatcher.close)
        if self._transactions is not None:
            await steps.run(self._transactions.close)
        if self.group_commit is not None:
            await steps.run(self.group_commit.close)
        await steps.run(partial(self.partitions.close, clean=not steps.has_failed))
        await steps.run(self.controller.stop)
        if membership is not None:
            await steps.run(membership.leave)
            if self.log_dir.is_closed_cleanly:
                await self._count_stop()
        steps.raise_first()
