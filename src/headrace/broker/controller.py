"""The controller: the one place from which cluster facts change.

Decides nothing itself. Every change runs the same way: a pure decision over the image → commit, expecting the
versions that the image knows → apply to the image → tell the listeners → answer. What could not be committed
has changed nothing. Who leads a partition and who is in sync is `partition_states.py`'s part.
"""

from base64 import urlsafe_b64encode
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from uuid import UUID, uuid4

from headrace.broker.fact_writer import ChangeListener, FactWriter, named_twice, repeated
from headrace.broker.log_levels import log_levels, set_log_levels
from headrace.broker.partition_states import PartitionStates
from headrace.core.cluster import brokers, topics
from headrace.core.cluster.alter_configs import Alteration, alter_configs, replace_configs
from headrace.core.cluster.brokers import ProducerIdBlock
from headrace.core.cluster.config_view import BrokerLayers, broker_layers
from headrace.core.cluster.image import ClusterImage
from headrace.core.cluster.loggers import altered_levels
from headrace.core.cluster.topics import CreatedTopic, DeletedTopic, MorePartitions, NewTopic, TopicDefaults
from headrace.core.cluster.values import ConfigResource, Decision, ResourceType
from headrace.metadata.store import LeaseId, Store
from headrace.model.clock import Clock
from headrace.model.errors import HeadraceError, RequestError
from headrace.model.settings import Listener, Settings

# The first of an id's 22 characters in base64 stands for its first six bits; 62 stands for a dash.
_ABOVE_FIRST_SIX_BITS = 128 - 6
_DASH = 62


class Controller:
    def __init__(self, store: Store, settings: Settings, clock: Clock, new_uuid: Callable[[], UUID] = uuid4) -> None:
        self.image = ClusterImage()
        self._settings = settings
        self._clock = clock
        self._new_uuid = new_uuid
        self._facts = FactWriter(store, self.image)
        self.states = PartitionStates(self._facts, self.image, settings.node_id, self.broker_configs)
        self.broker_epoch = -1  # of this broker's registration

    # Starting and stopping

    async def start(
        self,
        endpoints: Iterable[Listener],
        *,
        unclean: bool = False,
        keeps_unsynced: bool = False,
        directory: str = "",
        alone: bool = True,
        check_cluster: Callable[[str], Awaitable[None]] | None = None,
    ) -> None:
        """Learn all facts, then register this broker. `unclean`: its last run did not end with a clean shutdown.

        `keeps_unsynced`: even so the machine has run on, and nothing is lost of what that run had written.
        `directory` is the id of its data directory; `alone` says that nobody else comes to these facts;
        `check_cluster` raises if the node may not join the cluster that it finds.
        """
        await self._facts.catch_up()
        if check_cluster is not None:
            await check_cluster(self.image.cluster_id)
        node_id = self._settings.node_id
        addresses = tuple(endpoints)
        new_cluster_id = _short_text(self._new_id())

        def directory_before() -> str:
            known = self.image.brokers.get(node_id)
            return (known.directory if known is not None else "") or directory

        def registration(*, is_back: bool = True) -> Decision[None]:
            return brokers.register(
                self.image,
                node_id=node_id,
                endpoints=addresses,
                rack=self._settings.rack,
                configured_cluster_id=self._settings.cluster_id,
                new_cluster_id=new_cluster_id,
                directory=directory,
                known_as=directory if is_back else directory_before(),
                alone=alone,
            )

        registration()  # a node that may not register must not touch what the other holds, either
        if unclean:
            if not alone:
                # What was loaded may be old; what is known after a commit of ours is not, and from this one on nobody
                # takes a fetch of our earlier life for one of this. The directory stays what it was until all is done.
                await self._facts.change_one(lambda: registration(is_back=False))
            is_another_disk = directory_before() != directory
            await self.states.come_back(
                has_lost_all=is_another_disk or self._settings.in_memory, keeps_unsynced=keeps_unsynced, alone=alone
            )
        await self._facts.change_one(registration)
        self.broker_epoch = self.image.brokers[node_id].epoch

    async def follow(self) -> None:
        """Learn what other brokers commit, for as long as this is awaited."""
        await self._facts.follow()

    async def begin_session(self, lease: LeaseId, *, stopping: bool = False) -> None:
        node_id = self._settings.node_id
        await self._facts.change_one(
            lambda: brokers.begin_session(self.image, node_id, self.broker_epoch, lease=lease, stopping=stopping), lease
        )

    async def stop(self) -> None:
        """Let changes under way finish; the store belongs to whoever opened it."""
        await self._facts.finish()

    def on_change(self, listener: ChangeListener) -> None:
        """`listener` is awaited for every event, in order, before the change is answered.

        It must not ask the controller for another change: that one would wait for this one.
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
        """Topics whose folders may still be there if the process died while deleting them."""
        return {tombstone.topic_id for tombstone in self.image.tombstones.values()}

    async def unregister(self, node_id: int) -> None:
        """A broker that is gone for good is forgotten."""
        await self._facts.change_one(lambda: brokers.unregister(self.image, node_id))

    # Changing: one row or error per wish

    async def create_topics(
        self, wanted: Sequence[NewTopic], *, validate_only: bool = False
    ) -> dict[str, CreatedTopic | HeadraceError]:
        defaults = TopicDefaults(
            partitions=self._settings.integer("num.partitions"),
            replication_factor=self._settings.integer("default.replication.factor"),
            layers=self.layers(),
        )
        topic_ids = {topic.name: self._new_id() for topic in wanted}
        return await self._facts.change_each(
            [(topic.name, topic) for topic in wanted],
            lambda wishes: topics.create_topics(wishes, self.image, topic_ids, defaults),
            validate_only=validate_only,
        )

    async def create_partitions(
        self, wanted: Sequence[MorePartitions], *, validate_only: bool = False
    ) -> dict[str, int | HeadraceError]:
        return await self._facts.change_each(
            [(more.topic, more) for more in wanted],
            lambda wishes: topics.add_partitions(wishes, self.image),
            validate_only=validate_only,
        )

    async def delete_topics(self, targets: Sequence[str | UUID]) -> dict[str | UUID, DeletedTopic | HeadraceError]:
        enabled = self._settings.flag("delete.topic.enable")
        now_ms = self._clock.wall_ms()
        rows = await self._facts.change_each(
            [(target, None) for target in targets],
            lambda wishes: topics.delete_topics(wishes, self.image, enabled=enabled, now_ms=now_ms),
        )
        while await self._facts.change_one(lambda: topics.prune_tombstones(self.image)):
            pass
        return rows

    async def alter_configs(
        self, wanted: Sequence[tuple[ConfigResource, Sequence[Alteration]]], *, validate_only: bool = False
    ) -> dict[ConfigResource, HeadraceError | None]:
        """IncrementalAlterConfigs, log levels included."""
        rows = await self._facts.change_each(
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

    async def replace_configs(
        self, wanted: Sequence[tuple[ConfigResource, Mapping[str, str | None]]], *, validate_only: bool = False
    ) -> dict[ConfigResource, HeadraceError | None]:
        """AlterConfigs: what is not named goes back to its default."""
        return await self._facts.change_each(
            wanted, lambda wishes: replace_configs(wishes, self.image, self.layers()), validate_only=validate_only
        )

    async def allocate_producer_ids(self) -> ProducerIdBlock:
        """Ids that nobody was given before and nobody else will be."""
        return await self._facts.change_one(lambda: brokers.next_producer_ids(self.image))

    async def take_control(self, lease: LeaseId) -> bool:
        """Whether this broker is the controller, now that it has tried to become it."""
        return await self._facts.change_one(lambda: brokers.take_control(self.image, self._settings.node_id), lease)

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
