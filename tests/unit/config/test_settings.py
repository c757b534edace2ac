"""Addresses as people write them, and settings that survive the way to a child process."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.config.settings import (
    ClusterSettings,
    EtcdSettings,
    GatewaySettings,
    Listener,
    Member,
    Settings,
    join_address,
    split_address,
)
from headrace.model.errors import InvalidConfig


@pytest.mark.parametrize(
    ("text", "listener"),
    [
        ("PLAINTEXT://localhost:9092", Listener("PLAINTEXT", "localhost", 9092)),
        ("plaintext://[::1]:0", Listener("PLAINTEXT", "::1", 0)),
        ("EXTERNAL_2://:9094", Listener("EXTERNAL_2", "", 9094)),
        (" INTERNAL://10.0.0.1:65535 ", Listener("INTERNAL", "10.0.0.1", 65535)),
    ],
)
def test_listeners_are_read(text, listener):
    assert Listener.parse(text) == listener
    assert Listener.parse(str(listener)) == listener


@pytest.mark.parametrize(
    "text",
    [
        "localhost:9092",
        "://localhost:9092",
        "A B://localhost:9092",
        "PLAINTEXT://localhost",
        "PLAINTEXT://localhost:",
        "PLAINTEXT://localhost:65536",
        "PLAINTEXT://localhost:99999999999999999999",
        "PLAINTEXT://localhost:-1",
        "PLAINTEXT://::1:9092",
        "PLAINTEXT://[::1:9092",
        "PLAINTEXT://a b:1",
        "PLAINTEXT://user@host:1",
        "PLAINTEXT://host:1/path",
    ],
)
def test_other_listeners_are_refused(text):
    with pytest.raises(InvalidConfig):
        Listener.parse(text)


@given(st.sampled_from(["localhost", "::1", "10.0.0.1", "", "fe80::1"]), st.integers(0, 65535))
def test_addresses_read_back_as_they_were_written(host, port):
    assert split_address(join_address(host, port)) == (host, port)


def test_settings_survive_the_way_through_json():
    settings = Settings(
        node_id=3,
        cluster_id="abc",
        rack="r1",
        listeners=(Listener("A", "::1", 0), Listener("B", "", 9093)),
        advertised=(Listener("A", "example.org", 9092),),
        data_dir="/var/lib/headrace",
        storage="memory",
        broker_configs={"num.partitions": "2"},
        cluster=ClusterSettings(initial_members=(Member(node_id=3, api_addr="a:1", rpc_addr="a:2"),), bootstrap=True),
        metadata="etcd://a:1",
        etcd=EtcdSettings(user="me", password_file="/f"),
        gateway=GatewaySettings(port=0, acks="leader"),
    )
    assert Settings.from_json(settings.to_json()) == settings
    assert "\n" not in settings.to_json()
    assert Settings.from_json(Settings().to_json()) == Settings()


def test_settings_may_come_from_a_parent_that_says_only_what_it_must():
    assert Settings.from_json('{"node_id": 7, "listeners": ["X://h:1"]}').node_id == 7


def test_a_config_is_what_was_set_or_the_default():
    settings = Settings(broker_configs={"num.partitions": "2"})
    assert settings.config("num.partitions") == 2
    assert settings.config("default.replication.factor") == 1
    assert settings.is_set("num.partitions")
    assert not settings.is_set("default.replication.factor")


def test_configs_that_live_in_fields_are_asked_by_each_of_their_names():
    settings = Settings(node_id=4, rack="r", data_dir="/d", listeners=(Listener("A", "h", 1),))
    assert settings.config("node.id") == settings.config("broker.id") == 4
    assert settings.config("log.dirs") == settings.config("log.dir") == ("/d",)
    assert settings.config("listeners") == settings.config("advertised.listeners") == ("A://h:1",)
    assert settings.config("broker.rack") == "r"


def test_unknown_and_unset_configs_are_told_apart():
    with pytest.raises(InvalidConfig, match=r"did you mean num\.partitions"):
        Settings().config("num.partitons")
    with pytest.raises(InvalidConfig, match=r"log\.retention\.ms is not set"):
        Settings().config("log.retention.ms")


def test_memory_mode_is_a_question_of_storage():
    assert Settings(storage="memory").in_memory
    assert not Settings().in_memory
