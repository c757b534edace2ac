"""Which keys do nothing yet is compared with what the source reads: the documentation cannot promise too much."""

import re
from pathlib import Path

import pytest

from headrace.config.ignored_keys import IGNORED_KEYS
from headrace.config.keys.node import CLUSTER_KEYS, ETCD_KEYS, GATEWAY_KEYS, NODE_CONFIGS
from headrace.config.settings import Settings, TelemetrySettings
from headrace.config.values import BROKER_CONFIGS, TOPIC_CONFIGS, LogConfig

PACKAGE = Path(__file__).parents[3] / "src" / "headrace"
# These read every key alike, to check or to show it; that gives it no effect.
READERS_OF_ALL = (
    "model/",
    "config/",
    "cli/",
    "spark/",
    "archive/",
    "pipeline/",
    "formats/",
    "lake/",
    "client/reader/",
)
SOURCE = "\n".join(
    path.read_text()
    for path in sorted(PACKAGE.rglob("*.py"))
    if not str(path.relative_to(PACKAGE)).startswith(READERS_OF_ALL)
)
# Keys that the source reads under the name of a field, and fields that it reads under the name of a property.
FIELDS = {
    "advertised.listeners": "advertised",
    "broker.id": "node_id",
    "broker.rack": "rack",
    "cluster.id": "cluster_id",
    "inter.broker.listener.name": "internal_listener",
    "listener.security.protocol.map": "listeners",
    "listeners": "listeners",
    "log.dir": "data_dir",
    "log.dirs": "data_dir",
    "logging.format": "log_format",
    "metadata": "metadata",
    "metrics_addr": "metrics_addr",
    "node.id": "node_id",
    "storage": "in_memory",
    "tracing.enabled": "tracing",
    "cleanup.policy": "compacts",
    "message.timestamp.type": "timestamp_type",
    "message.timestamp.before.max.ms": "timestamp_before_max_ms",
    "message.timestamp.after.max.ms": "timestamp_after_max_ms",
    "unclean.leader.election.enable": "unclean_leader_election",
    "internal.segment.bytes": "segment_bytes",
    "archive.before.delete": "archived_to",
    "archive.until": "archived_to",
}
# A group's own value or the broker's, between the broker's limits: config/keys/group.py reads them by one name.
GROUP_KEYS = {
    f"group.consumer.{limit}{what}.ms"
    for limit in ("", "min.", "max.")
    for what in ("assignment.interval", "heartbeat.interval", "session.timeout")
}
# Not the broker's business but the archiver's, which is a client.
ARCHIVER_KEYS = {"archive.table", "archive.schema"}
ARCHIVER = (PACKAGE / "archive" / "settings.py").read_text()
SYNONYMS = {synonym: topic for topic in TOPIC_CONFIGS.values() for synonym in topic.synonyms}


def is_read(name: str) -> bool:
    if name in SYNONYMS and name not in TOPIC_CONFIGS:
        return is_read(SYNONYMS[name].name)
    if name in ARCHIVER_KEYS:
        return f'"{name}"' in ARCHIVER
    if name in GATEWAY_KEYS:
        return re.search(r"settings\.gateway\b", SOURCE) is not None
    if name in CLUSTER_KEYS | ETCD_KEYS:
        return re.search(rf"\.{name.rpartition('.')[2]}\b", SOURCE) is not None
    if name in GROUP_KEYS:
        return f'group_config("{name.removeprefix("group.").replace("min.", "").replace("max.", "")}"' in SOURCE
    field = FIELDS.get(name, name.replace(".", "_"))
    if field in LogConfig.__dataclass_fields__ or name in FIELDS:
        return re.search(rf"\.{field}\b", SOURCE) is not None
    return f'"{name}"' in SOURCE


@pytest.mark.parametrize("name", sorted({**TOPIC_CONFIGS, **BROKER_CONFIGS, **NODE_CONFIGS}))
def test_a_key_has_an_effect_if_and_only_if_the_source_reads_it(name):
    if name in IGNORED_KEYS:
        assert not is_read(name), f"{name} is read now: take it out of config/ignored_keys.py"
    else:
        assert is_read(name), f"nothing reads {name}: wire it up, or add it to config/ignored_keys.py"


def test_the_list_names_only_keys_that_exist():
    assert {*TOPIC_CONFIGS, *BROKER_CONFIGS, *NODE_CONFIGS} >= IGNORED_KEYS


def test_fields_that_stand_for_keys_exist():
    known = {*dir(Settings), *dir(TelemetrySettings), *dir(LogConfig)}
    assert set(FIELDS.values()) <= known
