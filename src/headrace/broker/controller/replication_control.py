"""Replication control: commits partition states, that is leaders, ISRs and reassignments.

The decisions are in `core/controller`; this module commits them, one change at a time.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from uuid import UUID

from headrace.broker.controller.metadata_writer import MetadataWriter
from headrace.broker.replica.flush_policies import syncs_before_ack
from headrace.config.values import log_config
from headrace.core.controller import replication_control
from headrace.core.controller.alter_partition import AlterPartitionItem, IsrOutcome, alter_partition, by_block
from headrace.core.controller.leader_election import BrokerLiveness, ElectionConfig
from headrace.core.controller.restored_metadata import raise_leader_epochs
from headrace.core.image.metadata_image import MetadataImage
from headrace.core.image.model import Decision, TopicImage
from headrace.model.errors import HeadraceError, RequestError


class ReplicationControl:
    def __init__(
        self,
        facts: MetadataWriter,
        image: MetadataImage,
        node_id: int,
        broker_configs: Callable[[], Mapping[str, str]],
    ) -> None:
        self._facts = facts
        self._image = image
        self._node_id = node_id
        self._broker_configs = broker_configs

    async def elect_where_needed(self) -> None:
        """Elects leaders where none is available, and removes unavailable replicas from ISRs.

        Called on the active controller.
        """
        names = replication_control.topics_with_offline_leader(
            self._image, replication_control.condition_of(self._image)
        )
        if names:
            rows = await self._facts.write_each(
                [(name, None) for name in names],
                lambda wishes: replication_control.elect(
                    wishes,
                    self._image,
                    replication_control.condition_of(self._image),
                    self._rules_of,
                    node_id=self._node_id,
                ),
                awaits_listeners=False,
            )
            _raise_first(rows.values())

    async def elect_leaders(self, wanted: Mapping[str, Collection[int]], *, unclean: bool) -> None:
        """Elects preferred leaders, or with `unclean` any available replica where there is no leader.

        Does not return the outcome; the metadata image has it.
        """

        def decide(wishes: Mapping[str, Collection[int]]) -> Mapping[str, Decision[int] | RequestError]:
            condition = replication_control.condition_of(self._image)
            if unclean:
                return replication_control.elect_unclean(wishes, self._image, condition, self._rules_of)
            return replication_control.elect_preferred(wishes, self._image, condition)

        _raise_first((await self._facts.write_each(list(wanted.items()), decide)).values())

    async def maybe_balance_partition_leaders(self) -> int:
        """Runs the preferred leader election. Returns the number of partitions that were imbalanced before."""
        wanted = replication_control.imbalanced_partitions(self._image, replication_control.condition_of(self._image))
        if wanted:
            await self.elect_leaders(wanted, unclean=False)
        return sum(map(len, wanted.values()))

    async def reassign(self, wanted: Mapping[str, Mapping[int, tuple[int, ...] | None]]) -> None:
        rows = await self._facts.write_each(
            list(wanted.items()), lambda wishes: replication_control.reassign(wishes, self._image)
        )
        _raise_first(rows.values())

    async def alter_partition(self, proposals: Sequence[AlterPartitionItem]) -> list[AlterPartitionItem]:
        """Returns the proposals that are known to be rejected. The metadata image shows the outcome of the others."""
        rows = await self._facts.write_each(
            list(by_block(proposals).items()),
            lambda wanted: alter_partition(wanted, self._image, self._node_id, self._rules_of),
            awaits_listeners=False,
        )
        # Errors of deleted topics are ignored: the deletion arrives as a metadata event.
        _raise_first(row for row in rows.values() if not isinstance(row, RequestError))
        return [one for row in rows.values() if isinstance(row, IsrOutcome) for one in row.refused]

    async def resign(
        self,
        wanted: Mapping[str, Collection[int]],
        *,
        to_copy_anew: bool = False,
        holds_nothing: bool = False,
        unless_last: bool = False,
    ) -> None:
        """Removes this broker, whose replicas are unusable, from leadership, ISR and ELR where others can take over."""

        def decide(wishes: Mapping[str, Collection[int]]) -> Mapping[str, Decision[int] | RequestError]:
            condition = replication_control.condition_of(self._image)
            return replication_control.resign(
                wishes,
                self._image,
                self._node_id,
                condition,
                self._rules_of,
                to_copy_anew=to_copy_anew,
                holds_nothing=holds_nothing,
                unless_last=unless_last,
            )

        _raise_first((await self._facts.write_each(list(wanted.items()), decide)).values())

    async def raise_leader_epochs(
        self, wanted: Mapping[str, Mapping[int, int]], *, alone: bool, has_lost: Callable[[TopicImage], bool]
    ) -> None:
        """Raises leader epochs that are below the logs'.

        `wanted`: by topic and partition, the newest leader epoch in this broker's log, where it is above the
        metadata's.
        """

        def decide(wishes: Mapping[str, Mapping[int, int]]) -> Mapping[str, Decision[int] | RequestError]:
            condition = BrokerLiveness({self._node_id}) if alone else replication_control.condition_of(self._image)
            return raise_leader_epochs(wishes, self._image, self._node_id, condition, self._rules_of, has_lost)

        _raise_first((await self._facts.write_each(list(wanted.items()), decide)).values())

    async def lead_above(self, wanted: Mapping[str, Mapping[int, int]]) -> None:
        """Starts a leader epoch above the given one in those partitions that this broker still leads."""
        rows = await self._facts.write_each(
            list(wanted.items()), lambda wishes: replication_control.lead_above(wishes, self._image, self._node_id)
        )
        _raise_first(rows.values())

    async def handle_unclean_restart(
        self,
        *,
        has_lost_all: bool,
        same_boot_as_last_run: bool,
        alone: bool,
        acked_unsynced: Callable[[UUID], bool | None] = lambda _: None,
    ) -> None:
        """Commits the effect of an unclean shutdown on the partitions of this broker.

        It leaves the ISR and ELR of partitions whose acknowledged records may be lost, and starts a new leader epoch
        in the other partitions that it leads. `acked_unsynced`: whether the previous process acknowledged records of
        a topic before they were synced. If that was not recorded (None), the current flush policy decides.
        """
        node_id = self._node_id
        condition = (
            BrokerLiveness({node_id}) if alone else replication_control.condition_of(self._image).without(node_id)
        )
        rows = await self._facts.write_each(
            [(name, None) for name in replication_control.topics_held_by(self._image, node_id, lost_log=has_lost_all)],
            lambda names: replication_control.handle_unclean_restart(
                names,
                self._image,
                node_id,
                condition,
                self._rules_of,
                lambda topic: not same_boot_as_last_run and self.acked_unsynced(topic, acked_unsynced(topic.topic_id)),
                lost_log=has_lost_all,
            ),
        )
        _raise_first(rows.values())

    def _rules_of(self, topic: TopicImage) -> ElectionConfig:
        return replication_control.rules_of(topic, self._broker_configs())

    def acked_unsynced(self, topic: TopicImage, recorded: bool | None) -> bool:
        """Returns whether the previous process acknowledged records before they were synced.

        `recorded` is what the data directory recorded; None if nothing, and the current flush policy decides.
        """
        if recorded is not None:
            return recorded
        return not syncs_before_ack(log_config(topic.configs, self._broker_configs()))


def _raise_first(rows: Iterable[object]) -> None:
    for row in rows:
        if isinstance(row, HeadraceError):
            raise row
