"""Internal topic of a coordinator: created when first needed; its leadership changes start and stop coordinators."""

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from headrace.broker.coordinator.errors import CoordinatorNotAvailable
from headrace.broker.coordinator.runtime import CoordinatorRuntime
from headrace.core.controller.topic_control import NewTopic
from headrace.core.image.deltas import MetadataDelta, PartitionsAdded, PartitionsChanged, TopicCreated, TopicDeleted
from headrace.core.image.metadata_image import TopicImage
from headrace.model.errors import HeadraceError, TopicExists

if TYPE_CHECKING:
    from headrace.broker.server import Broker

log = logging.getLogger(__name__)


class InternalTopicManager:
    def __init__(
        self,
        broker: "Broker",
        runtime: CoordinatorRuntime[Any],
        name: str,
        *,
        partitions: int,
        replication_factor: int,
        configs: Mapping[str, str | None],
    ) -> None:
        self._broker = broker
        self._runtime = runtime
        self.name = name
        self._partitions = partitions
        self._replication_factor = replication_factor
        self._configs = configs
        self._refused: dict[int, str] = {}  # by partition without a coordinator here: the error that was logged
        self._led: dict[int, int] = {}  # by partition: the leader epoch in which its coordinator was started
        self._one_at_a_time = asyncio.Lock()

    async def ensure(self) -> TopicImage:
        """Returns the topic. The first call creates it."""
        async with self._one_at_a_time:
            image = self._broker.image
            if self.name not in image.topics:
                await self._create(min(self._replication_factor, self._broker.size_of_cluster()))
            topic = self._broker.image.topics.get(self.name)
        if topic is None:
            raise CoordinatorNotAvailable(f"{self.name} could not be created")
        return topic

    async def _create(self, replicas: int) -> None:
        wanted = NewTopic(
            name=self.name, partitions=self._partitions, replication_factor=replicas, configs=self._configs
        )
        rows = await self._broker.controller.create_topics([wanted])
        outcome = rows[self.name]
        if isinstance(outcome, HeadraceError) and not isinstance(outcome, TopicExists):
            raise CoordinatorNotAvailable(f"{self.name} cannot be created: {outcome}")

    # Applying cluster metadata

    def follow(self, event: MetadataDelta) -> None:
        match event:
            case TopicCreated(topic) | PartitionsAdded(topic, _) | PartitionsChanged(topic, _) if (
                topic.name == self.name
            ):
                self.lead()
            case TopicDeleted(topic) if topic.name == self.name:
                for index in list(self._led):
                    self._resign(index)

    def lead(self) -> None:
        """Starts coordinators for the partitions that this broker leads, and stops those of all others."""
        topic = self._broker.partitions.followed(self.name)
        if topic is None:
            return
        for index, state in enumerate(topic.partitions):
            leads = state.leader == self._broker.node_id
            if index in self._led and not (leads and self._led[index] == state.leader_epoch):
                self._resign(index)
            if leads and index not in self._led:
                self._lead(index, state.leader_epoch)

    def _lead(self, index: int, leader_epoch: int) -> None:
        """Starts the coordinator of a partition. One that cannot be opened gets none; the others are not affected."""
        try:
            partition = self._broker.partitions.get(self.name, index)
        except HeadraceError as error:
            if self._refused.get(index) != str(error):  # every change of the topic retries
                log.error("%s-%d has no coordinator on this broker: %s", self.name, index, error)
            self._refused[index] = str(error)
            return
        self._refused.pop(index, None)
        self._led[index] = leader_epoch
        self._runtime.lead(partition)

    def _resign(self, index: int) -> None:
        self._led.pop(index, None)
        self._runtime.resign(index)
