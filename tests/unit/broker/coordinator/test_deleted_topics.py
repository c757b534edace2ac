"""Offsets of a deleted topic are deleted, also where their partition is loaded again meanwhile."""

from headrace.core.topic import OFFSETS_TOPIC
from headrace.protocol.api import ApiKey
from tests.unit.broker.connection_kit import until
from tests.unit.broker.handlers.handler_kit import HandlerKit


async def test_topic_deleted_while_offsets_are_loaded_again_loses_them() -> None:
    kit = await HandlerKit(offsets_topic_num_partitions="1").start()
    await kit.create("t")
    await kit.groups.leader_of("g")
    topics = [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 7}]}]
    answer = await kit.ask(ApiKey.OFFSET_COMMIT, 8, group_id="g", topics=topics)
    assert answer.topics[0].partitions[0].error_code.value == 0
    runtime, partition = kit.groups.runtime, kit.partition(OFFSETS_TOPIC)
    runtime.shard(0).is_loaded = False  # a record could not be applied: `applying`
    await kit.controller.delete_topics(["t"])
    runtime.resign(0)
    runtime.lead(partition)
    await until(lambda: runtime.led()[0].is_loaded)
    await until(lambda: not runtime.shard(0).machine.offsets.of_group("g"))
    await kit.close()
