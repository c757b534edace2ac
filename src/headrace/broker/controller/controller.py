"""The controller: the one place from which cluster facts change.

Decides nothing itself. Every change runs the same way: a pure decision over the image → commit, expecting the
versions that the image knows → apply to the image → tell the listeners → answer. What could not be committed
has changed nothing. Who leads a partition and who is in sync is `replication_control.py`'s part.
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

# The first of an id's 22 characters in base64 stands for its first six bits; 62 stands for a dash.
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
        """Learn all facts, then register this broker. `unclean`: its last run did not end with a clean shutdown.

        `same_boot_as_last_run`: even so the machine has run on, and nothing is lost of what that run had written.
        `acked_unsynced`: see `ReplicationControl.handle_unclean_restart`.
        `directory` is the id of its data directory; `incarnation` distinguishes it from copies. `registrations` is how
        often a broker has registered or stopped cleanly with it, as counted in the directory; `count_registration`
        raises that count above the given one and returns it. `alone`: no other broker uses this metadata.
        `check_cluster` raises if the node may not join the cluster that it finds.
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

        registration()  # a node that may not register must not touch what the other holds, either
        if not alone:
            # What was loaded may be old; what is known after a commit of ours is not, and from this one on nobody
            # takes a fetch of our earlier life for one of this. Directory and count stay what they were until all is
            # done: the start that follows one which failed must come to the same conclusions.
            await self._facts.write_one(lambda: registration(is_back=False))
        # Before the clean mark: it vouches for the bytes of a log, not for its age, and a former disk has one, too.
        is_another_disk = self._is_another_disk(directory)
        is_older_copy = not is_another_disk and self._is_older_copy(registrations)
        if unclean or is_another_disk or is_older_copy:
            await self.states.handle_unclean_restart(
                has_lost_all=is_another_disk or is_older_copy or self._settings.in_memory,
                same_boot_as_last_run=same_boot_as_last_run,
                alone=alone,
                acked_unsynced=acked_unsynced,
            )
        # Only now: the start that follows one which failed before must recognise the older copy again.
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
        """Whether the broker had another data directory before this one: an empty disk, or one from still earlier."""
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
        """Whether a broker has registered or stopped with this data directory since the copy that is used was made."""
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
        """Counts a clean stop as a registration. Call when the logs are closed and the session is over.

        Otherwise a copy that was made while this process ran would pass for the directory that it has left. The count
        on disk is raised first, so that it is never below the metadata's.
        """
        if self.is_superseded:
            return
        count = count_registration(self._registrations_before())
        self._is_leaving = True
        try:
            await self._facts.write_one(lambda: cluster_control.count_stop(self.image, self._settings.node_id, count))
        except DuplicateBroker:
            if self._registrations_before() < count:  # else the outcome of the commit was unknown, and this is it
                raise

    @property
    def is_superseded(self) -> bool:
        """Whether the metadata has another registration of this broker id than the one of this process."""
        if self._is_leaving:
            return False  # its last commit replaces the registration
        return self.image.version_of(broker_key(self._settings.node_id)) != self.broker_epoch

    async def deliver_again(self, events: Sequence[MetadataDelta]) -> None:
        """Have every listener follow these events, after those of all changes so far."""
        await self._facts.deliver_again(events)

    async def catch_up(self) -> None:
        """Load every committed change that the image lacks."""
        await self._facts.catch_up()

    async def confirm(self) -> None:
        """Return when the listeners have followed every change that was committed before this call, by any broker."""
        await self._facts.confirm()

    async def follow(self) -> None:
        """Learn what other brokers commit, for as long as this is awaited."""
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
        """Let changes under way finish; the store belongs to whoever opened it."""
        await self._facts.finish()

    def on_change(self, listener: MetadataPublisher) -> None:
        """`listener` is awaited for every event, in order, before the change is answered.

        The image may be ahead of the event. The listener must not await another change: that one would wait for it.
        """
        self._facts.add_listener(listener)

    # Asking

    def layers(self, node_id: int | None = None) -> BrokerLayers:
        """What is set for a broker, ours if none is named, at each level."""
        return broker_layers(self.image, self._settings, self._settings.node_id if node_id is None else node_id)

    def broker_configs(self) -> dict[str, str]:
        """What is set for our broker, all levels together; defaults are not in it."""
        return self.layers().merged()

    def log_levels(self) -> dict[str, str]:
        """The level of each logger of this process, in Kafka's words."""
        return log_levels()

    def deleted_topic_ids(self) -> set[UUID]:
        """Topics whose directories a broker may still have if it was away, or died, when they were deleted."""
        return deleted_topic_ids(self.image)

    async def unregister(self, node_id: int) -> None:
        """A broker that is gone for good is forgotten."""
        await self._facts.write_one(lambda: cluster_control.unregister(self.image, node_id))

    # Changing: one row or error per wish

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
            await self._facts.settled()  # a topic that was created just now is served when its creator is answered
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
        """IncrementalAlterConfigs, log levels included."""
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
        """AlterConfigs: what is not named goes back to its default."""
        return await self._facts.write_each(
            wanted, lambda wishes: legacy_alter_configs(wishes, self.image, self.layers()), validate_only=validate_only
        )

    async def allocate_producer_ids(self) -> ProducerIdBlock:
        """Ids that nobody was given before and nobody else will be."""
        return await self._facts.write_one(lambda: cluster_control.next_producer_ids(self.image))

    async def raise_producer_ids(self, used: int) -> None:
        """After a restore: no broker gives out an id up to `used`, which logs know. Else it changes nothing."""
        await self._facts.write_one(lambda: restored_metadata.raise_producer_ids(self.image, used))

    async def claim_controller(self, lease: LeaseId) -> bool:
        """Whether this broker is the controller, now that it has tried to become it."""
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
        """An id whose text does not begin with a dash, which command line tools would take for a flag."""
        while (fresh := self._new_uuid()).int >> _ABOVE_FIRST_SIX_BITS == _DASH:
            pass
        return fresh


def _short_text(uuid: UUID) -> str:
    """22 characters, as Kafka's tools write ids."""
    return urlsafe_b64encode(uuid.bytes).rstrip(b"=").decode()
