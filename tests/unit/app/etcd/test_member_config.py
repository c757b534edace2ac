from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.app.etcd.member_config import (
    HEARTBEATS_PER_ELECTION_MIN,
    MemberBootstrap,
    addresses,
    client_address,
    command_line,
    peer_url,
    timers_ms,
)
from headrace.config.keys.node import ELECTION_MS_MAX, ELECTION_MS_MIN
from headrace.config.settings import ClusterSettings, EtcdSettings, Settings
from headrace.model.errors import InvalidConfig


def settings(rpc_addr: str = "10.0.0.1:19092", **etcd: str) -> Settings:
    return Settings(node_id=2, cluster=ClusterSettings(rpc_addr=rpc_addr), etcd=EtcdSettings(**etcd))


def with_timers(cap: int, heartbeat: int, shortest: int, longest: int) -> Settings:
    raft = ClusterSettings(
        heartbeat_interval_ms=heartbeat, election_timeout_min_ms=shortest, election_timeout_max_ms=longest
    )
    return Settings(cluster=raft, etcd=EtcdSettings(election_timeout_cap_ms=cap))


@pytest.mark.parametrize(
    ("cap", "raft", "used"),
    [
        (1000, (100, 500, 1000), (100, 500)),  # the defaults
        (1000, (100, 1000, 2000), (100, 1000)),
        (1000, (1000, 3000, 6000), (200, 1000)),  # etcd wants five heartbeats in an election timeout
        (1000, (100, 1000, 9000), (100, 1000)),
        (1000, (100, 2000, 3000), (100, 1000)),
        (50_000, (1000, 3000, 6000), (600, 3000)),
        (50_000, (100, 2000, 3000), (100, 1500)),  # the longest silence counts: etcd takes up to twice what it is told
        (2000, (1000, 3000, 6000), (400, 2000)),
        (300, (100, 500, 1000), (60, 300)),
        (10, (100, 500, 1000), (2, 10)),
        (1000, (1, 2, 2), (1, 1)),
    ],
)
def test_timers_become_etcds(cap: int, raft: tuple[int, int, int], used: tuple[int, int]) -> None:
    assert timers_ms(with_timers(cap, *raft)) == used


@given(
    cap=st.integers(ELECTION_MS_MIN, ELECTION_MS_MAX),
    heartbeat=st.integers(1, ELECTION_MS_MAX),
    shortest=st.integers(ELECTION_MS_MIN, ELECTION_MS_MAX),
    longest=st.integers(2 * ELECTION_MS_MIN, 2 * ELECTION_MS_MAX),
)
def test_any_timers_leave_etcd_five_heartbeats_and_exceed_no_limit(
    cap: int, heartbeat: int, shortest: int, longest: int
) -> None:
    heartbeat_ms, election_ms = timers_ms(with_timers(cap, heartbeat, shortest, longest))
    assert 1 <= heartbeat_ms <= heartbeat
    assert HEARTBEATS_PER_ELECTION_MIN * heartbeat_ms <= election_ms <= min(cap, shortest, longest // 2)


def test_default_session_is_as_long_as_the_shortest_lease_under_the_cap() -> None:
    """etcd gives no lease less than 1.5 election timeouts, in whole seconds (`minLeaseTTL` of its server)."""
    default = Settings()
    for raft in ((100, 500, 1000), (1000, 3000, 6000), (100, 3000, 6000), (1000, 50_000, 100_000)):
        heartbeat_ms, election_ms = timers_ms(with_timers(default.etcd.election_timeout_cap_ms, *raft))
        lease_ms_min = 1000 * ceil(3 * (election_ms // heartbeat_ms) // 2 * heartbeat_ms / 1000)
        assert lease_ms_min <= default.integer("broker.session.timeout.ms")


def test_brokers_are_served_beside_the_peers_unless_told_otherwise() -> None:
    assert client_address(settings()) == ("10.0.0.1", 29092)
    assert client_address(settings("10.0.0.1:60000")) == ("10.0.0.1", 0)
    assert client_address(settings(client_addr="127.0.0.1:2379")) == ("127.0.0.1", 2379)


def test_others_are_told_names_and_etcd_binds_to_numbers() -> None:
    where = addresses(settings("node-b:19092"), rpc_ip="10.0.0.2", client_ip="10.0.0.2", client_port=29092)
    assert where.peer_url == "http://node-b:19092"
    assert where.listen_peer_url == "http://10.0.0.2:19092"
    assert (where.client_url, where.listen_client_url) == ("http://node-b:29092", "http://10.0.0.2:29092")


def test_who_listens_everywhere_is_known_by_its_peer_address() -> None:
    where = addresses(settings(client_addr="0.0.0.0:2379"), rpc_ip="10.0.0.1", client_ip="0.0.0.0", client_port=2379)
    assert where.client_url == "http://10.0.0.1:2379"


@pytest.mark.parametrize("rpc_addr", ["0.0.0.0:19092", ":19092", "10.0.0.1:0"])
def test_an_address_that_nobody_can_connect_to_is_refused(rpc_addr: str) -> None:
    with pytest.raises(InvalidConfig, match="cannot connect"):
        peer_url(settings(), rpc_addr)


def test_certificates_close_both_doors() -> None:
    node = settings(ca_file="ca.pem", cert_file="node.pem", key_file="node.key", program="/opt/etcd")
    where = addresses(node, rpc_ip="10.0.0.1", client_ip="10.0.0.1", client_port=29092)
    program, *flags = command_line(
        node, "folder", MemberBootstrap("me", "new", (("me", where.peer_url),), "mark"), where
    )
    assert program == "/opt/etcd"
    assert {"--client-cert-auth=true", "--peer-client-cert-auth=true", "--peer-trusted-ca-file=ca.pem"} <= set(flags)
    assert "--initial-cluster=me=https://10.0.0.1:19092" in flags
    assert "--initial-cluster-token=mark" in flags


def test_a_member_that_was_there_before_is_told_nothing_about_beginnings() -> None:
    where = addresses(settings(), rpc_ip="10.0.0.1", client_ip="10.0.0.1", client_port=29092)
    flags = command_line(settings(), "folder", MemberBootstrap("me"), where)
    assert not any(flag.startswith("--initial-cluster") for flag in flags)
