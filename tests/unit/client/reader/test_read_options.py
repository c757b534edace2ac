"""Options are the connector's; what is wrong is refused with what to write instead."""

import pytest

from headrace.client.reader.read_options import Strategy, read_options
from headrace.model.errors import InvalidConfig
from headrace.model.ids import TopicPartition

BASE = {"kafka.bootstrap.servers": "localhost:9092", "subscribe": "orders"}


def read(streaming: bool = False, **options: str):
    named = {name.replace("__", "."): value for name, value in options.items()}
    return read_options(BASE | named, streaming=streaming)


def test_defaults_are_the_connectors():
    batch, stream = read(), read(streaming=True)
    assert (batch.start.word, batch.end.word, stream.start.word) == ("earliest", "latest", "latest")
    assert batch.fail_on_data_loss
    assert not batch.include_headers
    assert not batch.read_committed
    assert stream.max_trigger_delay_s == 15 * 60


def test_names_come_in_any_case():
    assert read(INCLUDEHEADERS="TRUE", FailOnDataLoss="false").include_headers


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ({"startingOffset": "earliest"}, "startingOffsets"),
        ({"subscribePatern": "x"}, "subscribePattern"),
        ({"maxOffsetPerTrigger": "1"}, "maxOffsetsPerTrigger"),
        ({"kafka__isolation__levl": "read_committed"}, "kafka.isolation.level"),
        ({"kafka__auto__offset__reset": "earliest"}, "startingOffsets"),
    ],
)
def test_a_wrong_name_is_refused_with_the_right_one(wrong, right):
    with pytest.raises(InvalidConfig, match=right):
        read(**wrong)


def test_a_prefix_makes_a_group_that_is_the_same_after_a_restart_and_another_for_other_topics():
    group = read(streaming=True, groupIdPrefix="billing").commit_group
    assert group is not None
    assert group.startswith("billing-")
    assert read(streaming=True, groupIdPrefix="billing", maxOffsetsPerTrigger="5").commit_group == group
    other = {**BASE, "subscribe": "payments", "groupIdPrefix": "billing"}
    assert read_options(other, streaming=True).commit_group != group
    assert read(streaming=True, groupIdPrefix="billing", kafka__group__id="named").commit_group == "named"
    assert read(streaming=True, groupIdPrefix="billing", commitGroup="shown").commit_group == "shown"
    assert read(streaming=True).commit_group is None


def test_the_rack_goes_to_the_client():
    assert read(kafka__client__rack="b").client.rack == "b"
    assert read().client.rack == ""


def test_a_stream_may_begin_anywhere_in_an_archive_and_reads_what_is_committed():
    stream = read(streaming=True, history="true", startingOffsets='{"orders": {"0": 7}}')
    assert stream.history
    assert stream.read_committed
    with pytest.raises(InvalidConfig, match="committed records alone"):
        read(streaming=True, history="true", kafka__isolation__level="read_uncommitted")
    with pytest.raises(InvalidConfig, match="history reads all there is"):
        read(history="true", startingOffsets="earliest")


@pytest.mark.parametrize(
    "wrong",
    [
        {"includeHeaders": "yes"},
        {"minPartitions": "0"},
        {"maxOffsetsPerTrigger": "5"},
        {"startingOffsets": "latest"},
        {"endingOffsets": "earliest"},
        {"startingOffsets": "{"},
        {"startingOffsets": "[1]"},
        {"startingOffsets": '{"orders": {"0": -3}}'},
        {"endingOffsets": '{"orders": {"0": -2}}'},
        {"startingTimestamp": "yesterday"},
        {"startingOffsetsByTimestampStrategy": "guess"},
        {"assign": '{"orders": [0]}'},
        {"kafka__isolation__level": "committed"},
        {"kafka__security__protocol": "TLS"},
        {"kafka__security__protocol": "SASL_SSL"},
        {"kafka__ssl__truststore__location": "trust.jks"},
        {"groupIdPrefix": ""},
    ],
)
def test_a_wrong_value_is_refused(wrong):
    with pytest.raises(InvalidConfig):
        read(**wrong)


def test_a_stream_has_no_end_and_sane_limits():
    with pytest.raises(InvalidConfig, match="no end"):
        read(streaming=True, endingOffsets="latest")
    with pytest.raises(InvalidConfig, match="minOffsetsPerTrigger"):
        read(streaming=True, minOffsetsPerTrigger="5", maxOffsetsPerTrigger="4")


def test_a_stream_may_be_told_where_to_stop():
    bound = read(streaming=True, untilOffsets='{"orders": {"0": 23}}').until
    assert bound is not None
    assert bound.offsets == {TopicPartition("orders", 0): 23}
    assert read(streaming=True).until is None
    for wrong in ("latest", '{"orders": {"0": -1}}', "23"):
        with pytest.raises(InvalidConfig, match="untilOffsets"):
            read(streaming=True, untilOffsets=wrong)
    with pytest.raises(InvalidConfig, match="a batch query has no triggers"):
        read(untilOffsets='{"orders": {"0": 23}}')


def test_the_address_and_one_subscription_are_needed():
    with pytest.raises(InvalidConfig, match=r"kafka\.bootstrap\.servers"):
        read_options({"subscribe": "orders"}, streaming=False)
    with pytest.raises(InvalidConfig, match="exactly one of"):
        read_options({"kafka.bootstrap.servers": "localhost:9092"}, streaming=False)


def test_subscriptions():
    assert read(subscribe="b, a ,b").subscription.topics == ("b", "a")
    base = {"kafka.bootstrap.servers": "localhost:9092"}
    assigned = read_options(base | {"assign": '{"a": [1, 0]}'}, streaming=False).subscription.assigned
    assert assigned == {TopicPartition("a", 0), TopicPartition("a", 1)}
    with pytest.raises(InvalidConfig, match="regular expression"):
        read_options(base | {"subscribePattern": "("}, streaming=False)


def test_times_go_before_offsets():
    given = {
        "startingTimestamp": "7",
        "startingOffsetsByTimestamp": '{"orders": {"0": 5}}',
        "startingOffsets": "earliest",
        "startingOffsetsByTimestampStrategy": "latest",
    }
    assert read(**given).start.time == 7
    del given["startingTimestamp"]
    start = read(**given).start
    assert (start.times, start.strategy) == ({TopicPartition("orders", 0): 5}, Strategy.LATEST)


@pytest.mark.parametrize(
    ("text", "seconds"), [("15m", 900), ("30 seconds", 30), ("500ms", 0.5), ("1h", 3600), ("250", 0.25)]
)
def test_durations(text, seconds):
    assert read(streaming=True, maxTriggerDelay=text).max_trigger_delay_s == seconds


def test_jaas_is_understood_and_passwords_are_not_shown():
    jaas = 'org.apache.kafka.common.security.scram.ScramLoginModule required username="ann" password="s,e=c";'
    options = read(
        kafka__security__protocol="SASL_PLAINTEXT",
        kafka__sasl__mechanism="SCRAM-SHA-256",
        kafka__sasl__jaas__config=jaas,
    )
    security = options.client.security
    assert (security.username, security.password, security.mechanism) == ("ann", "s,e=c", "SCRAM-SHA-256")
    assert "s,e=c" not in repr(options)
