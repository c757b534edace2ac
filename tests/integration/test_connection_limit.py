"""Clients that use up a broker's connections do not keep the other brokers from it."""

import socket
from contextlib import ExitStack

from confluent_kafka.admin import AdminClient, NewTopic

from headrace.testing.local.cluster import LocalCluster
from tests.patience import until

CONNECTIONS_MAX = 20
PATIENCE_S = 60.0


def connect(bootstrap: str) -> socket.socket:
    host, _, port = bootstrap.rpartition(":")
    return socket.create_connection((host, int(port)), PATIENCE_S)


def is_refused(connection: socket.socket, wait_s: float) -> bool:
    connection.settimeout(wait_s)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except ConnectionResetError:
        return True


def test_follower_joins_a_leader_whose_clients_are_at_their_limit() -> None:
    settings = {"max.connections": str(CONNECTIONS_MAX)}
    with LocalCluster(2, links=True, settings=settings) as cluster, ExitStack() as opened:
        first, second = cluster.brokers[1], cluster.brokers[2]
        create_topic(cluster)
        cluster.kill(2)
        while not is_refused(opened.enter_context(connect(first.bootstrap)), 0.1):
            pass
        second.start()
        admin = AdminClient({"bootstrap.servers": second.bootstrap})
        until(lambda: len(isr(admin)) == 2, "the follower is in the ISR", PATIENCE_S)
        assert is_refused(opened.enter_context(connect(first.bootstrap)), PATIENCE_S)


def create_topic(cluster: LocalCluster) -> None:
    """The client's connections are closed when this returns."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    admin.create_topics([NewTopic("t", 1, replica_assignment=[[1, 2]])])["t"].result(PATIENCE_S)


def isr(admin: AdminClient) -> list[int]:
    return list(admin.list_topics("t").topics["t"].partitions[0].isrs)
