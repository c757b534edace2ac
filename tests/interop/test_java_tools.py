"""Apache Kafka's own command-line tools, each a real JVM, against a broker of ours."""

import json
import re

import pytest

from tests.interop.apache_kafka import tool

CONFIGS = "kafka.admin.ConfigCommand"
CONSUMER = "consumer.ConsoleConsumer"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]


def from_start(topic: str, count: int, *more: str) -> list[str]:
    return [
        CONSUMER, "--topic", topic, "--partition", "0", "--offset", "earliest", "--max-messages", str(count), *more
    ]  # fmt: skip


def test_a_topic_lives_its_life_under_kafka_topics(run, topic):
    run("TopicCommand", "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=1000")
    described = run("TopicCommand", "--describe", "--topic", topic).text
    assert re.search(r"PartitionCount: 2\s+ReplicationFactor: 1\s+Configs: .*retention\.ms=1000", described)
    assert len(re.findall(r"Partition: \d\s+Leader: 0\s+Replicas: 0\s+Isr: 0", described)) == 2
    run("TopicCommand", "--alter", "--topic", topic, "--partitions", "5")
    assert "PartitionCount: 5" in run("TopicCommand", "--describe", "--topic", topic).text
    run("TopicCommand", "--delete", "--topic", topic)
    assert topic not in run("TopicCommand", "--list").lines


@pytest.mark.parametrize("codec", CODECS)
def test_console_producer_and_consumer_make_a_round_trip(run, topic, codec):
    lines = "".join(f"h{number}:v\tkey{number}\tvalue {number}\n" for number in range(100))
    run(
        "ConsoleProducer", "--topic", topic, "--compression-codec", codec,
        "--reader-property", "parse.key=true", "--reader-property", "parse.headers=true",
        stdin=lines.encode(),
    )  # fmt: skip
    printed = ["print.key=true", "print.headers=true", "print.offset=true", "print.partition=true"]
    forms = [part for choice in printed for part in ("--formatter-property", choice)]
    assert run(*from_start(topic, 100, *forms)).lines == [
        f"Partition:0\tOffset:{number}\th{number}:v\tkey{number}\tvalue {number}" for number in range(100)
    ]


def test_a_consumer_starts_at_a_given_offset_and_ends_by_itself(run, run_all, topic):
    run("ConsoleProducer", "--topic", topic, stdin=b"".join(b"%d\n" % number for number in range(20)))
    middle, latest = run_all(
        [CONSUMER, "--topic", topic, "--partition", "0", "--offset", "15", "--max-messages", "5"],
        [CONSUMER, "--topic", topic, "--partition", "0", "--offset", "latest", "--timeout-ms", "1000"],
    )
    assert middle.lines == ["15", "16", "17", "18", "19"]
    assert latest.lines == []


def test_offsets_are_queried_by_kafka_get_offsets(run, run_all, topic):
    run("ConsoleProducer", "--topic", topic, stdin=b"1\n2\n3\n")
    expected = {"latest": f"{topic}:0:3\n"} | dict.fromkeys(("earliest", "earliest-local", "0"), f"{topic}:0:0\n")
    # Nothing was ever moved to remote storage, and nothing waits to be: the tool leaves such partitions out.
    expected |= {"latest-tiered": "", "earliest-pending-upload": ""}
    answers = run_all(*(["GetOffsetShell", "--topic", topic, "--time", time] for time in expected))
    assert dict(zip(expected, (answer.text for answer in answers), strict=True)) == expected


def test_the_newest_time_is_found_by_kafka_get_offsets(run, topic):
    run("ConsoleProducer", "--topic", topic, stdin=b"1\n2\n3\n")
    (row,) = run("GetOffsetShell", "--topic-partitions", f"{topic}:0", "--time", "max-timestamp").lines
    assert row in {f"{topic}:0:{offset}" for offset in range(3)}, "all three may have the same millisecond"


def test_records_are_deleted_by_kafka_delete_records(run, topic, tmp_path):
    run("ConsoleProducer", "--topic", topic, stdin=b"1\n2\n3\n4\n")
    wanted = tmp_path / "offsets.json"
    wanted.write_text(json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 3}], "version": 1}))
    deleted = run("DeleteRecordsCommand", "--offset-json-file", str(wanted))
    assert f"partition: {topic}-0\tlow_watermark: 3" in deleted.text
    assert run("GetOffsetShell", "--topic", topic, "--time", "-2").lines == [f"{topic}:0:3"]
    assert run(*from_start(topic, 1)).lines == ["4"]


def test_topic_configs_are_changed_and_described_by_kafka_configs(run, topic):
    run("TopicCommand", "--create", "--topic", topic)
    entity = ["--entity-type", "topics", "--entity-name", topic]
    run(CONFIGS, *entity, "--alter", "--add-config", "retention.ms=7000,cleanup.policy=[compact,delete]")
    described = run(CONFIGS, *entity, "--describe").text
    assert "retention.ms=7000" in described
    assert re.search(r"cleanup\.policy=compact,delete ", described)
    run(CONFIGS, *entity, "--alter", "--delete-config", "cleanup.policy")
    everything = run(CONFIGS, *entity, "--describe", "--all").text
    assert "cleanup.policy=delete sensitive=false synonyms={DEFAULT_CONFIG:log.cleanup.policy=delete}" in everything
    assert "DYNAMIC_TOPIC_CONFIG:retention.ms=7000" in everything


def test_broker_configs_of_one_and_of_all_are_changed_by_kafka_configs(run, topic):
    run("TopicCommand", "--create", "--topic", topic)
    one = ["--entity-type", "brokers", "--entity-name", "0"]
    everyone = ["--entity-type", "brokers", "--entity-default"]
    run(CONFIGS, *everyone, "--alter", "--add-config", "log.cleaner.delete.retention.ms=111")
    assert "log.cleaner.delete.retention.ms=111" in run(CONFIGS, *everyone, "--describe").text
    run(CONFIGS, *one, "--alter", "--add-config", "log.cleaner.delete.retention.ms=222")
    of_topic = ["--entity-type", "topics", "--entity-name", topic, "--describe", "--all"]
    assert re.search(
        r"delete\.retention\.ms=222 .*DYNAMIC_BROKER_CONFIG:log\.cleaner\.delete\.retention\.ms=222, "
        r"DYNAMIC_DEFAULT_BROKER_CONFIG:log\.cleaner\.delete\.retention\.ms=111, DEFAULT_CONFIG",
        run(CONFIGS, *of_topic).text,
    )
    run(CONFIGS, *one, "--alter", "--delete-config", "log.cleaner.delete.retention.ms")
    run(CONFIGS, *everyone, "--alter", "--delete-config", "log.cleaner.delete.retention.ms")
    assert "delete.retention.ms=86400000" in run(CONFIGS, *of_topic).text


def test_log_levels_are_changed_by_kafka_configs(run):
    loggers = ["--entity-type", "broker-loggers", "--entity-name", "0"]
    before = run(CONFIGS, *loggers, "--describe").text
    name = re.search(r"^\s*([\w.]+)=(?:INFO|WARN)", before, re.MULTILINE).group(1)
    run(CONFIGS, *loggers, "--alter", "--add-config", f"{name}=DEBUG")
    assert f"{name}=DEBUG" in run(CONFIGS, *loggers, "--describe").text
    run(CONFIGS, *loggers, "--alter", "--add-config", f"{name}=INFO")


def test_log_dirs_show_partitions_and_sizes(run, broker, topic):
    run("ConsoleProducer", "--topic", topic, stdin=b"x" * 5000 + b"\n")
    described = json.loads(run("LogDirsCommand", "--describe", "--topic-list", topic).lines[-1])
    (log_dir,) = described["brokers"][0]["logDirs"]
    assert (log_dir["logDir"], log_dir["error"]) == (broker.data_dir, None)
    (partition,) = log_dir["partitions"]
    assert partition["partition"] == f"{topic}-0"
    assert partition["size"] > 5000


def test_api_versions_are_all_usable(run):
    listed = run("BrokerApiVersionsCommand").text
    served = re.findall(r"(\w+)\((\d+)\): (\d+)(?: to (\d+))? \[usable: (\d+)\]", listed)
    assert {name for name, *_ in served} >= {"Produce", "Fetch", "ListOffsets", "Metadata", "InitProducerId"}
    assert all(usable == (high or low) for _, _, low, high, usable in served)


def test_the_cluster_and_its_quorum_are_described(run_all, broker):
    cluster = tool("org.apache.kafka.tools.ClusterTool", "cluster-id", "--bootstrap-server", broker.bootstrap)
    status, replication = run_all(
        ["MetadataQuorumCommand", "describe", "--status"],
        ["MetadataQuorumCommand", "describe", "--replication"],
    )
    cluster_id = cluster.text.strip().removeprefix("Cluster ID: ")
    assert re.search(rf"ClusterId:\s+{re.escape(cluster_id)}", status.text)
    assert re.search(r"LeaderId:\s+0\b", status.text)
    assert re.search(r"^0\s.*\sLeader\s*$", replication.text, re.MULTILINE)


def test_a_verifiable_producer_is_acknowledged_for_every_record(run, topic):
    said = run("VerifiableProducer", "--topic", topic, "--max-messages", "1000", "--acks", "-1").lines
    rows = [json.loads(line) for line in said]
    (summary,) = [row for row in rows if row["name"] == "tool_data"]
    assert (summary["sent"], summary["acked"]) == (1000, 1000)
    offsets = [row["offset"] for row in rows if row["name"] == "producer_send_success"]
    assert sorted(offsets) == list(range(1000))


def test_the_performance_tools_count_every_record(run, topic):
    produced = run(
        "ProducerPerformance", "--topic", topic, "--num-records", "5000", "--record-size", "100", "--throughput", "-1"
    ).lines[-1]
    assert produced.startswith("5000 records sent, ")
    # It ends with the last record; by itself it gives up when nothing has come for ten seconds, joining included.
    head, row = run("ConsumerPerformance", "--topic", topic, "--num-records", "5000", "--timeout", "60000").lines
    told = dict(zip(head.split(", "), row.split(", "), strict=True))
    assert (told["data.consumed.in.nMsg"], told["data.consumed.in.MB"]) == ("5000", "0.4768")


def test_an_idempotent_java_producer_is_described(run, topic):
    run("ConsoleProducer", "--topic", topic, stdin=b"1\n2\n3\n")
    head, row = run("TransactionsCommand", "describe-producers", "--topic", topic, "--partition", "0").lines
    assert head.split()[:4] == ["ProducerId", "ProducerEpoch", "LatestCoordinatorEpoch", "LastSequence"]
    assert row.split()[3] == "2", "three records are numbered 0 to 2"


def test_leaders_are_elected_where_they_should_be_already(run, topic):
    run("TopicCommand", "--create", "--topic", topic, "--partitions", "2")
    arguments = ["--election-type", "preferred", "--topic", topic, "--partition", "1"]
    assert f"Valid replica already elected for partitions {topic}-1" in run("LeaderElectionCommand", *arguments).text


def test_the_client_compatibility_test_of_kafka_passes(run, topic):
    run(
        "ClientCompatibilityTest", "--topic", topic, "--num-cluster-nodes", "1",
        "--offsets-for-times-supported", "true", "--cluster-id-supported", "true",
        "--expect-record-too-large-exception", "false", "--create-topics-supported", "true",
        "--describe-acls-supported", "true", "--describe-configs-supported", "true",
        "--idempotent-producer-supported", "true",
    )  # fmt: skip
