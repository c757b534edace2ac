"""The calls of Rust-MQ's service, and those of operators, against a real broker."""

import time
from typing import Any

import grpc
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from headrace.records.builder import NewRecord, build_batch
from headrace.records.compression import Codec
from headrace.records.record import decode_records
from headrace.rpc import headrace_pb2 as pb
from tests.integration.rpc.kit import Rpc, records, refusal_of, refused
from tests.integration.stable_offsets import until_stable

Status = grpc.StatusCode


# Records


def test_what_is_produced_comes_back_with_every_field(rpc: Rpc, topic):
    full = pb.Record(
        key=b"k",
        value=b"v",
        timestamp_ms=1_700_000_000_000,
        headers=[pb.Header(name="a", value=b"1"), pb.Header(name="none"), pb.Header(name="a", value=b"")],
    )
    sent = [full, pb.Record(value=b""), pb.Record(key=b"", value=b"\x00\xff"), pb.Record(key=b"deleted")]
    answer = rpc.broker.Produce(pb.ProduceRequest(topic=topic, partition=0, records=sent))
    assert (list(answer.partitions), list(answer.offsets)) == ([0, 0, 0, 0], [0, 1, 2, 3])

    fetched = rpc.broker.Fetch(pb.FetchRequest(topic=topic))
    assert (fetched.next_offset, fetched.high_watermark, fetched.log_start_offset) == (4, 4, 0)
    got = list(fetched.records)
    assert got[0] == pb.Record(**{name.name: value for name, value in full.ListFields()})
    assert [record.offset for record in got] == [0, 1, 2, 3]
    assert [(r.HasField("key"), r.HasField("value"), r.key, r.value) for r in got[1:]] == [
        (False, True, b"", b""),
        (True, True, b"", b"\x00\xff"),
        (True, False, b"deleted", b""),
    ]
    assert abs(got[1].timestamp_ms - time.time() * 1000) < 3600_000


def test_keys_go_where_kafkas_own_clients_put_them(broker, rpc: Rpc, make_topic):
    topic, keys = make_topic(partitions=7), [b"key-%d" % number for number in range(50)]
    answer = rpc.broker.Produce(pb.ProduceRequest(topic=topic, records=[pb.Record(key=key) for key in keys]))
    kafka: dict[bytes, int] = {}
    producer = Producer({"bootstrap.servers": broker.bootstrap, "partitioner": "murmur2"})

    def delivered(_, message):
        kafka[message.key()] = message.partition()

    for key in keys:
        producer.produce(topic, key=key, on_delivery=delivered)
    producer.flush()
    assert dict(zip(keys, answer.partitions, strict=True)) == kafka
    assert len(set(answer.partitions)) == 7


@pytest.mark.parametrize("acks", [pb.ACKS_ALL, pb.ACKS_LEADER])
def test_acks_that_are_asked_for_bring_offsets(rpc: Rpc, topic, acks):
    answer = rpc.broker.Produce(pb.ProduceRequest(topic=topic, acks=acks, records=records(b"a", b"b")))
    assert list(answer.offsets) == [0, 1]


def test_without_acks_nobody_knows_an_offset(rpc: Rpc, topic):
    answer = rpc.broker.Produce(pb.ProduceRequest(topic=topic, acks=pb.ACKS_NONE, records=records(b"a")))
    assert list(answer.offsets) == [-1]


def test_a_record_batch_is_passed_on_unopened_and_comes_back_so(rpc: Rpc, topic):
    new = [NewRecord(1_700_000_000_000 + number, b"k", b"v%d" % number) for number in range(100)]
    batch = build_batch(new, codec=Codec.LZ4)
    for first in (0, 100):
        answer = rpc.broker.Produce(pb.ProduceRequest(topic=topic, partition=0, record_batch=batch))
        assert (list(answer.partitions), list(answer.offsets)) == ([0], [first])

    raw = rpc.broker.Fetch(pb.FetchRequest(topic=topic, format=pb.RECORD_BATCHES))
    assert not raw.records
    assert [record.value for record in decode_records(raw.record_batches[: len(batch)])] == [one.value for one in new]
    assert raw.next_offset == 200
    opened = rpc.broker.Fetch(pb.FetchRequest(topic=topic, offset=50))
    assert [record.offset for record in opened.records] == list(range(50, 200))


def test_fetch_stops_at_the_limits_it_is_given(rpc: Rpc, topic):
    sent = [b"%03d" % number + b"x" * 997 for number in range(100)]
    rpc.broker.Produce(pb.ProduceRequest(topic=topic, records=records(*sent)))
    few = rpc.broker.Fetch(pb.FetchRequest(topic=topic, offset=10, max_records=5))
    assert ([r.offset for r in few.records], few.next_offset) == ([10, 11, 12, 13, 14], 15)
    small = rpc.broker.Fetch(pb.FetchRequest(topic=topic, max_bytes=10_000))
    assert (len(small.records), small.next_offset) == (10, 10)
    one = rpc.broker.Fetch(pb.FetchRequest(topic=topic, max_bytes=1))
    assert (len(one.records), one.next_offset) == (1, 1)


def test_fetch_begins_at_either_end_and_waits_for_what_comes(rpc: Rpc, topic):
    rpc.broker.Produce(pb.ProduceRequest(topic=topic, records=records(b"a", b"b")))
    assert len(rpc.broker.Fetch(pb.FetchRequest(topic=topic, offset=-2)).records) == 2
    waiting = rpc.broker.Fetch.future(pb.FetchRequest(topic=topic, offset=2, max_wait_ms=60_000))
    rpc.broker.Produce(pb.ProduceRequest(topic=topic, records=records(b"c")))
    assert [record.value for record in waiting.result().records] == [b"c"]
    empty = rpc.broker.Fetch(pb.FetchRequest(topic=topic, offset=-1))
    assert (len(empty.records), empty.next_offset) == (0, 3)


def test_aborted_records_are_left_out_unless_asked_for(broker, rpc: Rpc, topic):
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": f"tx-{topic}"})
    producer.init_transactions()
    for value, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        producer.produce(topic, value)
        producer.flush()  # an abort would drop what has not left yet
        end()
    until_stable(broker.bootstrap, topic, 4)
    committed = rpc.broker.Fetch(pb.FetchRequest(topic=topic))
    assert ([r.value for r in committed.records], committed.next_offset) == ([b"committed"], 4)
    everything = rpc.broker.Fetch(pb.FetchRequest(topic=topic, isolation_level=pb.READ_UNCOMMITTED))
    assert [r.value for r in everything.records] == [b"aborted", b"committed"]


# Groups


def join(rpc: Rpc, group: str, topic: str, **fields):
    return rpc.broker.JoinGroup(pb.JoinGroupRequest(group_id=group, topics=[topic], **fields))


def test_two_members_share_a_topic_through_the_raw_protocol(rpc: Rpc, make_topic, group):
    topic = make_topic(partitions=4)
    first = join(rpc, group, topic)
    assert first.leader == first.member_id
    second_call = rpc.broker.JoinGroup.future(pb.JoinGroupRequest(group_id=group, topics=[topic]))
    beat = pb.HeartbeatRequest(group_id=group, generation_id=first.generation_id, member_id=first.member_id)
    with pytest.raises(grpc.RpcError) as asked_to_join_again:  # once the second is there
        beat_forever(rpc, beat)
    refusal = refusal_of(asked_to_join_again.value)
    assert (refusal.status, refusal.reason) == (Status.ABORTED, "REBALANCE_IN_PROGRESS")
    again = join(rpc, group, topic, member_id=first.member_id)
    second = second_call.result()
    assert again.generation_id == second.generation_id > first.generation_id
    leader, follower = (again, second) if again.leader == again.member_id else (second, again)
    assert {tuple(member.topics) for member in leader.members} == {(topic,)}
    assert not follower.members

    shares = {leader.member_id: [0, 1], follower.member_id: [2, 3]}
    waiting = rpc.broker.SyncGroup.future(sync_request(group, follower))
    mine = rpc.broker.SyncGroup(sync_request(group, leader, {who: {topic: share} for who, share in shares.items()}))
    theirs = waiting.result()
    assert mine.partitions == [pb.TopicPartitions(topic=topic, partitions=[0, 1])]
    assert theirs.partitions == [pb.TopicPartitions(topic=topic, partitions=[2, 3])]
    described = rpc.admin.DescribeGroup(pb.DescribeGroupRequest(group_id=group))
    assert described.state == "Stable"
    assert {one.member_id: list(one.partitions[0].partitions) for one in described.members} == shares


def beat_forever(rpc: Rpc, beat: pb.HeartbeatRequest) -> None:
    while True:
        rpc.broker.Heartbeat(beat)


def sync_request(group: str, joined: pb.JoinGroupResponse, shares=None) -> pb.SyncGroupRequest:
    return pb.SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        assignments=[
            pb.MemberAssignment(
                member_id=member,
                partitions=[pb.TopicPartitions(topic=topic, partitions=share) for topic, share in parts.items()],
            )
            for member, parts in (shares or {}).items()
        ],
    )


def test_a_group_of_another_kind_has_its_bytes_passed_on(rpc: Rpc, group):
    protocols = [pb.GroupProtocol(name="mine", metadata=b"\x01\x02")]
    joined = rpc.broker.JoinGroup(pb.JoinGroupRequest(group_id=group, protocol_type="workers", protocols=protocols))
    assert (joined.protocol_type, joined.protocol_name) == ("workers", "mine")
    assert [member.metadata for member in joined.members] == [b"\x01\x02"]
    request = sync_request(group, joined)
    request.assignments.add(member_id=joined.member_id, assignment=b"do this")
    assert rpc.broker.SyncGroup(request).assignment == b"do this"


def test_a_member_commits_and_leaves(broker, rpc: Rpc, topic, group):
    joined = join(rpc, group, topic)
    rpc.broker.SyncGroup(sync_request(group, joined, {joined.member_id: {topic: [0]}}))
    who = {"group_id": group, "member_id": joined.member_id, "generation_id": joined.generation_id}
    rpc.broker.Heartbeat(pb.HeartbeatRequest(**who))
    place = {"topic": topic, "partition": 0}
    rpc.broker.CommitOffset(pb.CommitOffsetRequest(**who, **place, offset=7, metadata="note"))
    found = rpc.broker.FetchOffset(pb.FetchOffsetRequest(group_id=group, **place))
    assert (found.offset, found.metadata) == (7, "note")
    stale = pb.CommitOffsetRequest(**(who | {"generation_id": 99}), **place, offset=8)
    assert refused(rpc.broker.CommitOffset, stale).reason == "ILLEGAL_GENERATION"
    rpc.broker.LeaveGroup(pb.LeaveGroupRequest(group_id=group, member_id=joined.member_id))
    gone = refused(rpc.broker.Heartbeat, pb.HeartbeatRequest(**who))
    assert (gone.status, gone.reason, gone.retriable) == (Status.NOT_FOUND, "UNKNOWN_MEMBER_ID", False)
    kafka = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": group})
    (committed,) = kafka.committed([TopicPartition(topic, 0)])
    assert committed.offset == 7
    kafka.close()


def test_offsets_without_a_member_are_for_groups_that_nobody_has_joined(rpc: Rpc, topic, group):
    asked = pb.FetchOffsetRequest(group_id=group, topic=topic)
    assert rpc.broker.FetchOffset(asked).offset == -1
    rpc.broker.CommitOffset(pb.CommitOffsetRequest(group_id=group, topic=topic, offset=3))
    assert rpc.broker.FetchOffset(asked).offset == 3
    join(rpc, group, topic)
    refusal = refused(rpc.broker.CommitOffset, pb.CommitOffsetRequest(group_id=group, topic=topic, offset=4))
    assert refusal.reason == "UNKNOWN_MEMBER_ID"


def test_a_group_that_is_not_there_is_told_apart_from_a_member_that_is_not(rpc: Rpc, topic, group):
    heartbeat = pb.HeartbeatRequest(group_id=group, generation_id=1, member_id="stranger")
    refusal = refused(rpc.broker.Heartbeat, heartbeat)
    assert (refusal.status, refusal.reason, refusal.kafka_code) == (Status.NOT_FOUND, "GROUP_ID_NOT_FOUND", 69)
    join(rpc, group, topic)
    assert refused(rpc.broker.Heartbeat, heartbeat).reason == "UNKNOWN_MEMBER_ID"


# Topics and operators


def test_topics_are_created_described_grown_listed_and_deleted(rpc: Rpc, make_topic):
    topic = make_topic(partitions=2, retention_ms="60000")
    rpc.broker.Produce(pb.ProduceRequest(topic=topic, partition=1, records=records(b"a", b"b")))
    found = rpc.admin.DescribeTopic(pb.DescribeTopicRequest(name=topic))
    assert [(one.partition, one.start_offset, one.end_offset) for one in found.ranges] == [(0, 0, 0), (1, 0, 2)]
    assert [(one.name, one.value) for one in found.configs if not one.is_default] == [("retention.ms", "60000")]
    rpc.admin.AddPartitions(pb.AddPartitionsRequest(name=topic, total_count=5))
    metadata = rpc.broker.GetTopicMetadata(pb.GetTopicMetadataRequest(topics=[topic]))
    (described,) = metadata.topics
    assert (len(described.partitions), described.partitions[4].leader) == (5, metadata.brokers[0].id)
    assert described.partitions[4].in_sync_replicas == [metadata.brokers[0].id]
    assert topic in {one.name for one in rpc.broker.GetTopicMetadata(pb.GetTopicMetadataRequest()).topics}
    rpc.admin.DeleteTopic(pb.DeleteTopicRequest(name=topic))
    assert refused(rpc.admin.DescribeTopic, pb.DescribeTopicRequest(name=topic)).status is Status.NOT_FOUND


def test_topics_come_page_by_page(rpc: Rpc, make_topic):
    made = {make_topic() for _ in range(5)}
    seen: list[str] = []
    token = ""
    while True:
        page = rpc.admin.ListTopics(pb.ListTopicsRequest(page_size=2, page_token=token))
        assert len(page.topics) <= 2
        seen += [one.name for one in page.topics]
        token = page.next_page_token
        if not token:
            break
    assert made <= set(seen)
    assert seen == sorted(set(seen))


def test_offsets_are_found_by_time(rpc: Rpc, make_topic):
    topic = make_topic(partitions=2)
    sent = [pb.Record(value=b"x", timestamp_ms=1_700_000_000_000 + number * 1000) for number in range(10)]
    rpc.broker.Produce(pb.ProduceRequest(topic=topic, partition=1, records=sent))
    asked = pb.ListOffsetsRequest(topic=topic, timestamp_ms=1_700_000_004_500)
    assert [(one.partition, one.offset) for one in rpc.admin.ListOffsets(asked).offsets] == [(0, -1), (1, 5)]
    ends = rpc.admin.ListOffsets(pb.ListOffsetsRequest(topic=topic, partitions=[1], timestamp_ms=-1))
    assert [(one.partition, one.offset) for one in ends.offsets] == [(1, 10)]


def test_offsets_of_a_group_are_set_listed_with_their_lag_and_deleted_with_it(rpc: Rpc, topic, group):
    rpc.broker.Produce(pb.ProduceRequest(topic=topic, records=records(*[b"x"] * 10)))
    offsets = [pb.PartitionOffset(topic=topic, partition=0, offset=4, metadata="here")]
    rpc.admin.AlterGroupOffsets(pb.AlterGroupOffsetsRequest(group_id=group, offsets=offsets))
    (found,) = rpc.admin.ListGroupOffsets(pb.ListGroupOffsetsRequest(group_id=group)).offsets
    assert (found.offset, found.metadata, found.lag) == (4, "here", 6)
    assert group in {one.group_id for one in rpc.admin.ListGroups(pb.ListGroupsRequest(states=["Empty"])).groups}
    rpc.admin.DeleteGroup(pb.DeleteGroupRequest(group_id=group))
    assert refused(rpc.admin.DescribeGroup, pb.DescribeGroupRequest(group_id=group)).reason == "GROUP_ID_NOT_FOUND"


# What every server has


def test_health_is_told_for_the_server_and_each_service(rpc: Rpc):
    health: Any = health_pb2_grpc.HealthStub(rpc.channel)  # its types name no calls
    for service in ("", "headrace.v1.KafkaBroker", "headrace.v1.Admin"):
        answer = health.Check(health_pb2.HealthCheckRequest(service=service))
        assert answer.status == health_pb2.HealthCheckResponse.SERVING


def test_reflection_tells_the_whole_interface(rpc: Rpc):
    told = ProtoReflectionDescriptorDatabase(rpc.channel)
    assert {"headrace.v1.KafkaBroker", "headrace.v1.Admin", "grpc.health.v1.Health"} <= set(told.get_services())
    file = told.FindFileContainingSymbol("headrace.v1.KafkaBroker")
    assert file.SerializeToString() == pb.DESCRIPTOR.serialized_pb
