"""Metadata manager: the only component of a broker that changes cluster metadata. Runs on every broker.

Every change follows the same steps: pure decision based on the metadata image → commit that expects the image's
versions → apply to the image → notify the listeners → respond. A failed commit changes nothing. Leaders, ISRs and
reassignments are in `replication_control.py`; the active controller's loop is in `active_controller.py`.
"""

import logging
from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from uuid import UUID, uuid4

from headrace.broker.controller.logging_control import log_levels, set_log_levels
from headrace.broker.controller.metadata_publisher import MetadataPublisher
from headrace.broker.controller.metadata_writer import MetadataWriter, named_twice, repeated
from headrace.broker.controller.replication_control import ReplicationControl
from headrace.config.settings import Listener, Settings
from headrace.core.controller import cluster_control, restored_metadata, topic_control
from headrace.core.controller.cluster_control import DuplicateBroker, ProducerIdBlock
from headrace.core.controller.config_control import Alteration, alter_configs, altered_levels, legacy_alter_configs
from headrace.core.controller.config_describe import BrokerLayers, broker_layers
from headrace.core.controller.stray_replicas import deleted_topic_ids
from headrace.core.controller.topic_control import CreatedTopic, DeletedTopic, NewPartitions, NewTopic, TopicDefaults
from headrace.core.image.deltas import MetadataDelta
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import ConfigResource, Decision, ResourceType
from headrace.core.image.records import broker_key
from headrace.metadata.store import LeaseId, Store
from headrace.model.clock import Clock
from headrace.model.errors import HeadraceError, RequestError, TopicExists

# The first of an id's 22 base64 characters encodes its first six bits; 62 encodes a dash.
_ABOVE_FIRST_SIX_BITS = 128 - 6
_DASH = 62

log = logging.getLogger(__name__)


class Controller:
    def __init__(self, store: Store, settings: Settings, clock: Clock, new_uuid: Callable[[], UUID] = uuid4) -> None:
        self.image = MetadataImage()
        self._settings = settings
        self._clock = clock
        self._new_uuid = new_uuid
        self._facts = MetadataWriter(store, self.image)
        self.states = ReplicationControl(self._facts, self.image, settings.node_id, self.broker_configs)
        self.broker_epoch = -1  # of this broker's registration
        self._is_leaving = False

    # Starting and stopping

    async def start(
        self,
        endpoints: Iterable[Listener],
        *,
        unclean: bool = False,
        same_boot_as_last_run: bool = False,
        acked_unsynced: Callable[[UUID], bool | None] = lambda _: None,
        directory: str = "",
        incarnation: str = "",
        registrations: int = 0,
        count_registration: Callable[[int], int] = lambda known: known,
        alone: bool = True,
        check_cluster: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """Loads the cluster metadata, then registers this broker.

        `unclean`: the last run did not end with a clean shutdown. `same_boot_as_last_run`: the host has not
        restarted since, so everything that the last run wrote is in the logs. `acked_unsynced`: see
        `ReplicationControl.handle_unclean_restart`. `directory` is the id of the data directory; `incarnation`
        distinguishes it from copies. `registrations` counts, in the directory, how often a broker has registered or
        stopped cleanly with it; `count_registration` raises that count above the given one and returns it. `alone`:
        no other broker uses this metadata. `check_cluster` raises if the node may not join the cluster that it
        finds.
        """
        await self._facts.catch_up()
        if check_cluster is not None:
            await check_cluster(self.image.cluster_id)
        node_id = self._settings.node_id
        addresses = tuple(endpoints)
        new_cluster_id = _short_text(self._new_id())

        def registration(*, is_back: bool = True) -> Decision[None]:
            return cluster_control.register(
                self.image,
                node_id=node_id,
                endpoints=addresses,
                rack=self._settings.rack,
                configured_cluster_id=self._settings.cluster_id,
                new_cluster_id=new_cluster_id,
                directory=directory,
                known_as=directory if is_back else self._directory_before() or directory,
                incarnation=incarnation,
                registrations=registrations if is_back else self._registrations_before(),
                alone=alone,
            )

        # Validated first: a node that may not register must not change the metadata of the registered one either.
        registration()
        if not alone:
            # The loaded image may be stale; after a commit it is current. From this commit on, fetches of this broker's
            # former process are not attributed to this one. Directory and count are committed at the end: if this start
            # fails, the next one must reach the same conclusions.
            await self._facts.write_one(lambda: registration(is_back=False))
        # Independent of the clean-shutdown marker, which covers the content of the logs but not their age: a former
        # disk can have one, too.
        is_another_disk = self._is_another_disk(directory)
        is_older_copy = not is_another_disk and self._is_older_copy(registrations)
        if unclean or is_another_disk or is_older_copy:
            await self.states.handle_unclean_restart(
                has_lost_all=is_another_disk or is_older_copy or self._settings.in_memory,
                same_boot_as_last_run=same_boot_as_last_run,
                alone=alone,
                acked_unsynced=acked_unsynced,
            )
        # Counted last: if this start fails, the next one must recognize the older copy again.
        registrations = count_registration(self._registrations_before())
        await self._facts.write_one(registration)
        self.broker_epoch = self.image.brokers[node_id].epoch
        if not alone:
            self._facts.act_as(node_id, self.broker_epoch)

    def _registrations_before(self) -> int:
        known = self.image.brokers.get(self._settings.node_id)
        return known.registrations if known is not None else 0

    def _directory_before(self) -> str:
        known = self.image.brokers.get(self._settings.node_id)
        return known.directory if known is not None else ""

    def _is_another_disk(self, directory: str) -> bool:
        """Whether the broker's previous data directory was another one: this one is empty, or from an earlier time."""
        before = self._directory_before()
        if before in ("", directory):
            return False
        log.error(
            "The data directory is not the one that broker %d had before: it has the id %s, and the metadata %s. "
            "Its replicas leave the ISR until they have caught up",
            self._settings.node_id,
            directory,
            before,
        )
        return True

    def _is_older_copy(self, registrations: int) -> bool:
        """Whether a broker has registered or stopped with this data directory since this copy of it was made."""
        if registrations >= self._registrations_before():
            return False
        log.error(
            "The data directory is an older copy: it has counted %d registrations and stops of broker %d, and the "
            "metadata %d. Its replicas may lack committed records; they leave the ISR until they have caught up",
            registrations,
            self._settings.node_id,
            self._registrations_before(),
        )
        return True

    async def count_stop(self, count_registration: Callable[[int], int]) -> None:
        """Counts a clean stop as a registration. Call when the logs are closed and the session has ended.

        Otherwise a copy made while this process ran could not be distinguished from the directory that it leaves.
        The count on disk is raised first, so that it is never below the one in the metadata.
        """
        if self.is_superseded:
            return
        count = count_registration(self._registrations_before())
        self._is_leaving = True
        try:
            await self._facts.write_one(lambda: cluster_control.count_stop(self.image, self._settings.node_id, count))
        except DuplicateBroker:
            if self._registrations_before() < count:  # otherwise the commit's outcome was unknown, and it has succeeded
                raise

    @property
    def is_superseded(self) -> bool:
        """Whether the metadata's registration of this broker id is no longer the one of this process."""
        if self._is_leaving:
            return False  # its last commit replaces the registration
        return self.image.version_of(broker_key(self._settings.node_id)) != self.broker_epoch

    async def deliver_again(self, events: Sequence[MetadataDelta]) -> None:
        """Delivers these events to every listener, after those of all earlier changes."""
        await self._facts.deliver_again(events)

    async def catch_up(self) -> None:
        """Loads every committed change that the image lacks."""
        await self._facts.catch_up()

    async def confirm(self) -> None:
        """Returns when the listeners have processed every change that any broker committed before this call."""
        await self._facts.confirm()

    async def follow(self) -> None:
        """Applies the changes that other brokers commit, until it is cancelled."""
        await self._facts.follow()

    async def begin_session(self, lease: LeaseId, *, stopping: bool = False, full: bool = False) -> None:
        node_id = self._settings.node_id
        await self._facts.write_one(
            lambda: cluster_control.begin_session(
                self.image, node_id, self.broker_epoch, lease=lease, stopping=stopping, full=full
            ),
            lease,
        )

    async def stop(self) -> None:
        """Waits for changes in flight. The owner of the metadata store closes it."""
        await self._facts.finish()

    def on_change(self, listener: MetadataPublisher) -> None:
        """`listener` is awaited for every event, in order, before the call that made the change returns.

        The image may be ahead of the event. The listener must not await another change: that change would wait for
        the listener.
        """
        self._facts.add_listener(listener)

    # Reading

    def layers(self, node_id: int | None = None) -> BrokerLayers:
        """Returns a broker's configs by level; of this broker by default."""
        return broker_layers(self.image, self._settings, self._settings.node_id if node_id is None else node_id)

    def broker_configs(self) -> dict[str, str]:
        """Returns this broker's configs, all levels merged, without defaults."""
        return self.layers().merged()

    def log_levels(self) -> dict[str, str]:
        """Returns the level of each logger of this process, in Kafka's names."""
        return log_levels()

    def deleted_topic_ids(self) -> set[UUID]:
        """Returns topics whose directories a broker may have kept because it was not running at their deletion."""
        return deleted_topic_ids(self.image)

    async def unregister(self, node_id: int) -> None:
        """Unregisters a broker that will not return."""
        await self._facts.write_one(lambda: cluster_control.unregister(self.image, node_id))

    # Changes: one result or error for each request

    async def create_topics(
        self, wanted: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, CreatedTopic | HeadraceError]:
        topic_ids = {topic.name: self._new_id() for topic in wanted}
        rows = await self._facts.write_each(
            [(topic.name, topic) for topic in wanted],
            lambda wishes: topic_control.create_topics(wishes, self.image, topic_ids, self._topic_defaults()),
            validate_only=validate_only,
        )
        if any(isinstance(row, TopicExists) for row in rows.values()):
            await self._facts.settled()  # a topic created just now is served when this request returns
        return rows

    def _topic_defaults(self) -> TopicDefaults:
        return TopicDefaults(
            partitions=self._settings.integer("num.partitions"),
            replication_factor=self._settings.integer("default.replication.factor"),
            layers=self.layers(),
        )

    async def create_partitions(
        self, wanted: Sequence[NewPartitions], *, validate_only: bool = False
    ) -> dict[str, int | HeadraceError]:
        return await self._facts.write_each(
            [(more.topic, more) for more in wanted],
            lambda wishes: topic_control.add_partitions(wishes, self.image),
            validate_only=validate_only,
        )

    async def delete_topics(self, targets: Sequence[str | UUID]) -> dict[str | UUID, DeletedTopic | HeadraceError]:
        enabled = self._settings.flag("delete.topic.enable")
        now_ms = self._clock.wall_ms()
        rows = await self._facts.write_each(
            [(target, None) for target in targets],
            lambda wishes: topic_control.delete_topics(wishes, self.image, enabled=enabled, now_ms=now_ms),
        )
        while await self._facts.write_one(lambda: topic_control.prune_tombstones(self.image)):
            pass
        return rows

    async def alter_configs(
        self, wanted: Sequence[tuple[ConfigResource, Sequence[Alteration]]], *, validate_only: bool = False
    ) -> dict[ConfigResource, HeadraceError | None]:
        """Implements IncrementalAlterConfigs, including log levels."""
        rows = await self._facts.write_each(
            [wish for wish in wanted if wish[0].type != ResourceType.BROKER_LOGGER],
            lambda wishes: alter_configs(wishes, self.image, self.layers()),
            validate_only=validate_only,
        )
        twice = repeated(resource for resource, _ in wanted)
        for resource, alterations in wanted:
            if resource.type == ResourceType.BROKER_LOGGER:
                only_once = resource not in twice
                rows[resource] = (
                    self._alter_log_levels(resource, alterations, validate_only) if only_once else named_twice()
                )
        return rows

    async def legacy_alter_configs(
        self, wanted: Sequence[tuple[ConfigResource, Mapping[str, str | None]]], *, validate_only: bool = False
    ) -> dict[ConfigResource, HeadraceError | None]:
        """Implements AlterConfigs: configs that are not named are reset to their defaults."""
        return await self._facts.write_each(
            wanted, lambda wishes: legacy_alter_configs(wishes, self.image, self.layers()), validate_only=validate_only
        )

    async def allocate_producer_ids(self) -> ProducerIdBlock:
        """Reserves a block of unique producer ids."""
        return await self._facts.write_one(lambda: cluster_control.next_producer_ids(self.image))

    async def raise_producer_ids(self, used: int) -> None:
        """Prevents allocation of ids up to `used`, which logs contain after a restore. Does nothing otherwise."""
        await self._facts.write_one(lambda: restored_metadata.raise_producer_ids(self.image, used))

    async def claim_controller(self, lease: LeaseId) -> bool:
        """Tries to acquire the controller lease. Returns whether this broker is the active controller."""
        return await self._facts.write_one(
            lambda: cluster_control.claim_controller(self.image, self._settings.node_id), lease, awaits_listeners=False
        )

    def _alter_log_levels(
        self, resource: ConfigResource, alterations: Sequence[Alteration], validate_only: bool
    ) -> RequestError | None:
        try:
            levels = altered_levels(resource, alterations, log_levels(), self._settings.node_id)
        except RequestError as error:
            return error
        if not validate_only:
            set_log_levels(levels)
        return None

    def _new_id(self) -> UUID:
        """Returns an id whose text does not begin with a dash, which command-line tools would parse as an option."""
        while (fresh := self._new_uuid()).int >> _ABOVE_FIRST_SIX_BITS == _DASH:
            pass
        return fresh


def _short_text(uuid: UUID) -> str:
    """Returns the id in 22 characters, as Kafka's tools write it."""
    return urlsafe_b64encode(uuid.bytes).rstrip(b"=").decode()
