"""Nodes with an etcd member each: founded, joined, killed, restarted, and configured wrongly."""

import asyncio
import re
import shutil
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml
from confluent_kafka import Producer
from confluent_kafka.admin import NewTopic

from headrace.app.metadata_store import Metadata
from headrace.app.node import Node
from headrace.config.settings import Settings
from headrace.metadata.etcd.store import EtcdStore, list_members
from headrace.metadata.store import Store, Unavailable
from headrace.model.errors import HeadraceError, InvalidConfig, StorageError
from headrace.process.runtime import SystemClock
from tests.integration.node_kit import START_SECONDS_MAX, NodeFiles, NodeProcess, admin, running, wait_for_brokers
from tests.integration.test_etcd_access import make_certificates


@pytest.fixture
def files(tmp_path: Path) -> Iterator[NodeFiles]:
    with NodeFiles(tmp_path, 3) as made:
        yield made


@pytest.fixture
def one_file(tmp_path: Path) -> Iterator[NodeFiles]:
    with NodeFiles(tmp_path, 1) as made:
        yield made


@asynccontextmanager
async def metadata_of(*nodes: Settings) -> AsyncIterator[list[Store]]:
    """The stores of nodes without their brokers, opened together; closed in order."""
    opened = [Metadata(settings, SystemClock()) for settings in nodes]
    try:
        async with asyncio.timeout(60):
            stores = await asyncio.gather(*(one.open() for one in opened))
        yield list(stores)
    finally:
        for one in opened:
            await one.close()


def test_three_nodes_form_a_cluster_and_each_may_be_killed(files: NodeFiles) -> None:
    with running(*(files.write(index) for index in range(3))) as nodes:
        assert len({wait_for_brokers(files, index, {1, 2, 3}) for index in range(3)}) == 1

        member = nodes[1].etcd()
        member.send_signal(signal.SIGKILL)
        nodes[1].wait_until("etcd runs as process", count=2)
        assert nodes[1].etcd().pid != member.pid, "it is started again"

        member = nodes[2].etcd()
        nodes[2].stop(signal.SIGKILL)
        member.wait(10)  # it goes with its node
        again = NodeProcess(files.folder / "node3.yaml")
        try:
            again.wait_until(" serves ", count=2)
            wait_for_brokers(files, 2, {1, 2, 3})
            member = again.etcd()
            assert again.stop() == 0
            assert not psutil.pid_exists(member.pid)
        finally:
            again.close()


def test_a_topic_made_on_one_node_is_there_on_all(files: NodeFiles) -> None:
    with running(*(files.write(index) for index in range(3))):
        for index in range(3):
            wait_for_brokers(files, index, {1, 2, 3})
        topic = NewTopic("everywhere", num_partitions=3, replication_factor=3)
        client = admin(files, 0)
        client.create_topics([topic])["everywhere"].result(30)
        producer = Producer({"bootstrap.servers": files.members[1]["api_addr"], "acks": "all"})
        failures: list[object] = []
        for partition in range(3):
            producer.produce(
                "everywhere", b"x", partition=partition, on_delivery=lambda error, _: failures.append(error)
            )
        assert producer.flush(30) == 0
        assert failures == [None, None, None]
        for index in range(3):
            told = admin(files, index).list_topics("everywhere", timeout=30).topics["everywhere"]
            assert {tuple(sorted(one.replicas)) for one in told.partitions.values()} == {(1, 2, 3)}


def test_a_broker_whose_process_is_gone_is_not_waited_for(files: NodeFiles) -> None:
    patient = {"broker": {"session": {"timeout": {"ms": 600_000}}}}
    with running(*(files.write(index, **patient) for index in range(3))) as nodes:
        for index in range(3):
            wait_for_brokers(files, index, {1, 2, 3})
            nodes[index].wait_until(
                "Connected to peer brokers: " + ", ".join(str(one) for one in (1, 2, 3) if one != index + 1)
            )
        nodes[2].stop(signal.SIGKILL)
        for index in (0, 1):
            wait_for_brokers(files, index, {1, 2})


def test_two_nodes_with_one_id_do_not_run_at_the_same_time(files: NodeFiles) -> None:
    nobody = {"node_id": 3, "cluster": {"initial_members": files.members[:2]}}
    with running(files.write(0), files.write(1), files.write(2, **nobody)):
        wait_for_brokers(files, 0, {1, 2, 3})
        impostor = files.node(2, **nobody, storage_path=str(files.folder / "impostor"), api_addr="127.0.0.1:0")
        path = files.folder / "impostor.yaml"
        path.write_text(yaml.safe_dump(impostor))
        node = NodeProcess(path)
        try:
            node.wait_for_end()
            assert "Another broker is registered with broker id 3" in node.output()
        finally:
            node.close()


def test_a_node_whose_clock_is_an_hour_off_does_not_join(files: NodeFiles) -> None:
    alone = {"cluster": {"initial_members": files.members[:2]}}
    with running(files.write(0), files.write(1)):
        wait_for_brokers(files, 0, {1, 2})
        late = NodeProcess(files.write(2, **alone), clock_ahead_s=-3600)
        try:
            assert late.wait_for_end() != 0
            told = r"the clock of this host is (\d+) s behind that of brokers 1, 2; set it right"
            found = re.search(told, late.output())
            assert found is not None, late.output()
            assert abs(int(found[1]) - 3600) <= 30, "an hour, and what an answer of a busy machine may take"
        finally:
            late.close()
        assert set(admin(files, 0).list_topics(timeout=30).brokers) == {1, 2}


async def test_facts_are_the_same_on_all_members_and_outlive_all_of_them(files: NodeFiles) -> None:
    settings = [files.settings(index) for index in range(3)]
    async with metadata_of(*settings) as stores:
        await stores[0].commit({}, {"/a": b"1"})
        for store in stores[1:]:
            assert (await store.load("/a")).entries["/a"].value == b"1"
    async with metadata_of(*settings) as stores:
        assert (await stores[2].load("/a")).entries["/a"].value == b"1"


async def test_a_broker_goes_on_with_the_others_while_its_own_member_is_down(files: NodeFiles) -> None:
    async with metadata_of(*(files.settings(index) for index in range(3))) as stores:
        store = stores[1]
        assert isinstance(store, EtcdStore)
        await store.refresh_endpoints(())
        own = next(one for one in psutil.Process().children() if "broker-2" in " ".join(one.cmdline()))
        own.suspend()
        try:
            assert (await store.load("/")).entries == {}
        finally:
            own.resume()


async def test_a_node_that_is_new_joins_as_a_member_or_just_uses_the_others(tmp_path: Path) -> None:
    with NodeFiles(tmp_path, 3, listed=1) as files:
        both = {"initial_members": files.members[:2], "bootstrap": False}
        async with metadata_of(files.settings(0), files.settings(1, cluster=both), files.settings(2)) as stores:
            await stores[1].commit({}, {"/a": b"1"})
            assert "/a" in (await stores[2].load("/")).entries
            assert isinstance(stores[0], EtcdStore)
            members = await list_members(stores[0].connection)
            assert [member.is_learner for member in members] == [False, False], "two have a vote, the third no member"


async def test_certificates_between_members_and_to_them(files: NodeFiles, tmp_path: Path) -> None:
    make_certificates(tmp_path)
    names = {"ca_file": "ca.pem", "cert_file": "node.pem", "key_file": "node.key"}
    paths = {key: str(tmp_path / name) for key, name in names.items()}
    settings = [files.settings(index, etcd={**files.node(index)["etcd"], **paths}) for index in range(3)]
    async with metadata_of(*settings) as stores:
        await stores[0].commit({}, {"/a": b"1"})
        assert "/a" in (await stores[2].load("/")).entries


async def test_a_node_that_waits_for_its_cluster_can_be_stopped(files: NodeFiles) -> None:
    node = NodeProcess(files.write(1))
    try:
        node.wait_until("Waiting for a response of a cluster member")
        assert await asyncio.to_thread(node.stop) == 0
    finally:
        node.close()


async def refused(settings: Settings) -> HeadraceError:
    node = Node(settings)
    try:
        async with asyncio.timeout(60):
            await node.start()
    except HeadraceError as error:
        return error
    finally:
        await node.stop()
    raise AssertionError("it started")


@pytest.mark.parametrize(
    ("changes", "kind", "told"),
    [
        ({"etcd": {"program": "etcd-that-is-not-there"}}, InvalidConfig, "apt-get install etcd-server"),
        ({"etcd": {"program": "true"}}, InvalidConfig, "is not etcd"),
        ({"etcd": {"client_addr": "192.0.2.1:2379"}}, StorageError, "cannot assign requested address"),
        ({"metadata": "etcd://127.0.0.1:1"}, Unavailable, "no connection to etcd at 127.0.0.1:1"),
        ({"metadata": "unix:///nobody/there.sock"}, Unavailable, "is the cluster up?"),
    ],
)
async def test_an_etcd_that_is_missing_or_wrong_is_said_plainly(
    files: NodeFiles, changes: dict[str, Any], kind: type[HeadraceError], told: str
) -> None:
    error = await refused(files.settings(0, **changes))
    assert isinstance(error, kind)
    assert told in str(error)


async def test_a_node_alone_in_its_list_must_found_its_cluster(one_file: NodeFiles) -> None:
    alone = {"initial_members": one_file.members, "bootstrap": False}
    assert "set it to true to found" in str(await refused(one_file.settings(0, cluster=alone)))


async def test_a_second_founder_and_a_member_without_its_data_are_refused(files: NodeFiles) -> None:
    async with metadata_of(*(files.settings(index) for index in range(3))):
        founder_again = {**files.node(1)["cluster"], "bootstrap": True}
        elsewhere = str(files.folder / "empty")
        error = await refused(files.settings(1, cluster=founder_again, storage_path=elsewhere))
        assert "set it to false" in str(error)
        error = await refused(files.settings(1, storage_path=elsewhere))
        assert "its data are lost" in str(error)


async def test_a_data_directory_knows_its_node(files: NodeFiles) -> None:
    async with metadata_of(*(files.settings(index) for index in range(3))):
        pass
    first = files.folder / "broker-1"
    assert "member of node 1" in str(await refused(files.settings(1, storage_path=str(first))))
    shutil.copytree(first, files.folder / "copy", ignore=shutil.ignore_patterns("identity.json"))
    assert "not this node's" in str(await refused(files.settings(0, storage_path=str(files.folder / "copy"))))
    moved = files.node(0)
    moved["cluster"]["initial_members"][0]["rpc_addr"] = moved["rpc_addr"] = "127.0.0.1:1"
    assert "restore it" in str(await refused(files.settings(0, **moved)))


def test_two_nodes_cannot_share_a_data_directory(one_file: NodeFiles) -> None:
    with running(one_file.write(0)):
        second = asyncio.run(refused(one_file.settings(0)))
        assert "in use by another process" in str(second)
    other = asyncio.run(refused(one_file.settings(0, node_id=2, cluster={}, etcd={})))
    assert "belongs to node 1" in str(other)


def test_three_nodes_on_one_host_have_rest_and_replicate(files: NodeFiles) -> None:
    """As their files say nothing of the ports of REST and gRPC, nor of replication."""
    with running(*(files.write(index, gateway={}) for index in range(3))) as nodes:
        for index, node in enumerate(nodes):
            wait_for_brokers(files, index, {1, 2, 3})
            node.wait_until("REST on http://")
            node.wait_until("gRPC on ")
        rest = [node.output().partition("REST on ")[2].partition(",")[0] for node in nodes]
        grpc = [node.output().partition("gRPC on ")[2].partition(",")[0] for node in nodes]
        assert len({*rest, *grpc}) == 6, "each has ports of its own, and says which"
        made = httpx.post(f"{rest[1]}/topics", json={"name": "orders"}, timeout=START_SECONDS_MAX)
        assert (made.status_code, made.json()["replication_factor"]) == (201, 3)
        configs = httpx.get(f"{rest[2]}/api/v1/topics/orders/configs", timeout=START_SECONDS_MAX).json()["configs"]
        assert {"2"} == {row["value"] for row in configs if row["name"] == "min.insync.replicas"}
        sent = httpx.post(f"{rest[0]}/topics/orders/messages", json={"value": "v"}, timeout=START_SECONDS_MAX)
        assert sent.status_code == 200, sent.text
