"""The states of partitions as facts: who leads them, who is in sync, where replicas are moving to.

Decides nothing itself: decisions are those of `core/cluster`; here they are committed, one change at a time.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from uuid import UUID

from headrace.broker.fact_writer import FactWriter
from headrace.broker.flush_policies import syncs_before_ack
from headrace.core.cluster import elections
from headrace.core.cluster.image import ClusterImage
from headrace.core.cluster.isr_changes import IsrOutcome, IsrProposal, by_block, change_isrs
from headrace.core.cluster.restored import raise_leader_epochs
from headrace.core.cluster.succession import Condition, Rules
from headrace.core.cluster.values import Decision, TopicImage
from headrace.model.configs import log_config
from headrace.model.errors import HeadraceError, RequestError


class PartitionStates:
    def __init__(
        self,
        facts: FactWriter,
        image: ClusterImage,
        node_id: int,
        broker_configs: Callable[[], Mapping[str, str]],
    ) -> None:
        self._facts = facts
        self._image = image
        self._node_id = node_id
        self._broker_configs = broker_configs

    async def elect_where_needed(self) -> None:
        """As controller: leaders for the partitions whose leader is gone, ISRs without those who are."""
        names = elections.topics_in_need(self._image, elections.condition_of(self._image))
        if names:
            rows = await self._facts.change_each(
                [(name, None) for name in names],
                lambda wishes: elections.elect(
                    wishes,
                    self._image,
                    elections.condition_of(self._image),
                    self._rules_of,
                    node_id=self._node_id,
                ),
                awaits_listeners=False,
            )
            _raise_first(rows.values())

    async def elect_leaders(self, wanted: Mapping[str, Collection[int]], *, unclean: bool) -> None:
        """By request: the first replicas lead, or anybody where nobody does. The facts tell what became of it."""

        def decide(wishes: Mapping[str, Collection[int]]) -> Mapping[str, Decision[int] | RequestError]:
            condition = elections.condition_of(self._image)
            if unclean:
                return elections.elect_unclean(wishes, self._image, condition, self._rules_of)
            return elections.elect_preferred(wishes, self._image, condition)

        _raise_first((await self._facts.change_each(list(wanted.items()), decide)).values())

    async def balance_leaders(self) -> int:
        """The first replicas lead what they can; returns how many partitions that concerned."""
        wanted = elections.out_of_place(self._image, elections.condition_of(self._image))
        if wanted:
            await self.elect_leaders(wanted, unclean=False)
        return sum(map(len, wanted.values()))

    async def reassign(self, wanted: Mapping[str, Mapping[int, tuple[int, ...] | None]]) -> None:
        rows = await self._facts.change_each(
            list(wanted.items()), lambda wishes: elections.reassign(wishes, self._image)
        )
        _raise_first(rows.values())

    async def change_isrs(self, proposals: Sequence[IsrProposal]) -> list[IsrProposal]:
        """Those proposals that are known to be refused; of the others, the facts tell."""
        rows = await self._facts.change_each(
            list(by_block(proposals).items()),
            lambda wanted: change_isrs(wanted, self._image, self._node_id, self._rules_of),
            awaits_listeners=False,
        )
        _raise_first(row for row in rows.values() if not isinstance(row, RequestError))  # that a topic is gone is told
        return [one for row in rows.values() if isinstance(row, IsrOutcome) for one in row.refused]

    async def resign(
        self,
        wanted: Mapping[str, Collection[int]],
        *,
        to_copy_anew: bool = False,
        holds_nothing: bool = False,
        unless_last: bool = False,
    ) -> None:
        """This broker cannot use its copies: it neither leads nor counts as in sync, where others do."""

        def decide(wishes: Mapping[str, Collection[int]]) -> Mapping[str, Decision[int] | RequestError]:
            condition = elections.condition_of(self._image)
            return elections.resign(
                wishes,
                self._image,
                self._node_id,
                condition,
                self._rules_of,
                to_copy_anew=to_copy_anew,
                holds_nothing=holds_nothing,
                unless_last=unless_last,
            )

        _raise_first((await self._facts.change_each(list(wanted.items()), decide)).values())

    async def raise_leader_epochs(
        self, wanted: Mapping[str, Mapping[int, int]], *, alone: bool, has_lost: Callable[[TopicImage], bool]
    ) -> None:
        """`wanted`: by topic and partition, the newest leader epoch in this broker's log, where metadata is behind."""

        def decide(wishes: Mapping[str, Mapping[int, int]]) -> Mapping[str, Decision[int] | RequestError]:
            condition = Condition({self._node_id}) if alone else elections.condition_of(self._image)
            return raise_leader_epochs(wishes, self._image, self._node_id, condition, self._rules_of, has_lost)

        _raise_first((await self._facts.change_each(list(wanted.items()), decide)).values())

    async def lead_above(self, wanted: Mapping[str, Mapping[int, int]]) -> None:
        """Lead these partitions in a leader epoch above the given one, as far as this broker still leads them."""
        rows = await self._facts.change_each(
            list(wanted.items()), lambda wishes: elections.lead_above(wishes, self._image, self._node_id)
        )
        _raise_first(rows.values())

    async def come_back(
        self,
        *,
        has_lost_all: bool,
        keeps_unsynced: bool,
        alone: bool,
        acked_unsynced: Callable[[UUID], bool | None] = lambda _: None,
    ) -> None:
        """After an unclean stop: hand over what this broker leads, and be in sync only where nothing can be lost.

        `acked_unsynced`: whether the last process acknowledged records of a topic before they were synced. If that was
        not recorded (None), the flush policy of now decides.
        """
        node_id = self._node_id
        condition = Condition({node_id}) if alone else elections.condition_of(self._image).without(node_id)
        rows = await self._facts.change_each(
            [(name, None) for name in elections.topics_held_by(self._image, node_id, lost_log=has_lost_all)],
            lambda names: elections.come_back(
                names,
                self._image,
                node_id,
                condition,
                self._rules_of,
                lambda topic: not keeps_unsynced and self.acked_unsynced(topic, acked_unsynced(topic.topic_id)),
                lost_log=has_lost_all,
            ),
        )
        _raise_first(rows.values())

    def _rules_of(self, topic: TopicImage) -> Rules:
        return elections.rules_of(topic, self._broker_configs())

    def acked_unsynced(self, topic: TopicImage, recorded: bool | None) -> bool:
        """Whether the last process acknowledged records before they were synced; `recorded` is as in `come_back`."""
        if recorded is not None:
            return recorded
        return not syncs_before_ack(log_config(topic.configs, self._broker_configs()))


def _raise_first(rows: Iterable[object]) -> None:
    for row in rows:
        if isinstance(row, HeadraceError):
            raise row
