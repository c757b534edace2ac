"""Who gets into etcd: users and passwords, certificates, the right cluster; and members whose answers are old."""

import asyncio
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc.aio
import pytest

from headrace.config.etcd_address import EtcdAddress, parse_endpoints
from headrace.metadata.etcd import messages
from headrace.metadata.etcd import messages as pb
from headrace.metadata.etcd.grpc_client.call import CallFailed
from headrace.metadata.etcd.grpc_client.channel import Channel
from headrace.metadata.etcd.store import EtcdStore
from headrace.metadata.etcd.tls import tls_context
from headrace.metadata.store import Conflict, LeaseExpired, StoreAccessDenied, Unavailable
from headrace.model.errors import InvalidConfig
from headrace.testing.local.etcd import LocalEtcd
from tests.integration.etcd_kit import ask_raw, connect

READ_WRITE = 2


@pytest.fixture
def etcd() -> Iterator[LocalEtcd]:
    with LocalEtcd() as server:
        yield server


@pytest.fixture
async def guarded(etcd: LocalEtcd) -> EtcdAddress:
    """An etcd with users: `broker` may use what lies under /facts and nothing else."""
    address = EtcdAddress(endpoints=etcd.endpoints, namespace="/facts", user="broker", password="secret")
    prefix = pb.data(2, b"/facts") + pb.data(3, b"/factt")
    for call, request in (
        ("UserAdd", pb.text(1, "root") + pb.text(2, "root")),
        ("UserGrantRole", pb.text(1, "root") + pb.text(2, "root")),
        ("RoleAdd", pb.text(1, "facts")),
        ("RoleGrantPermission", pb.text(1, "facts") + pb.message(2, pb.integer(1, READ_WRITE) + prefix)),
        ("UserAdd", pb.text(1, "broker") + pb.text(2, "secret")),
        ("UserGrantRole", pb.text(1, "broker") + pb.text(2, "facts")),
        ("AuthEnable", b""),
    ):
        if call == "UserGrantRole" and request.startswith(pb.text(1, "root")):
            await ask_raw(replace(address, user=""), "/etcdserverpb.Auth/RoleAdd", pb.text(1, "root"))
        await ask_raw(replace(address, user=""), f"/etcdserverpb.Auth/{call}", request)
    return address


async def test_the_right_user_may_do_everything_the_port_has(guarded: EtcdAddress) -> None:
    store = await EtcdStore.connect(guarded)
    lease = await store.grant(5_000)
    revision = await store.commit({"/a": 0}, {"/a": b"1"}, lease)
    await store.commit({"/a": revision}, {})
    async with aclosing(store.watch("/", revision - 1)) as changes:
        assert (await anext(changes)).writes == {"/a": b"1"}
    await store.keep_alive(lease)
    await store.revoke(lease)
    with pytest.raises(LeaseExpired):
        await store.keep_alive(lease)
    await store.close()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"password": "wrong"}, "does not accept etcd.user"),
        ({"user": "stranger"}, "does not accept etcd.user"),
        ({"user": ""}, "set etcd.user"),
        ({"namespace": "/elsewhere"}, "grant it readwrite"),
    ],
)
async def test_whoever_may_not_enter_is_told_why(guarded: EtcdAddress, change: dict[str, str], told: str) -> None:
    with pytest.raises(StoreAccessDenied, match=told):
        await EtcdStore.connect(replace(guarded, **change))


async def test_a_user_where_etcd_has_none_is_told_so(etcd: LocalEtcd) -> None:
    with pytest.raises(StoreAccessDenied, match=r"remove etcd\.user"):
        await EtcdStore.connect(EtcdAddress(endpoints=etcd.endpoints, user="broker", password="secret"))


async def test_a_token_that_etcd_forgot_is_asked_for_again(etcd: LocalEtcd, guarded: EtcdAddress) -> None:
    store = await EtcdStore.connect(guarded)
    await store.commit({}, {"/a": b"1"})
    etcd.kill(0)
    await asyncio.to_thread(etcd.restart, 0)  # tokens live in its memory
    await store.commit({}, {"/a": b"2"})
    assert (await store.load("/a")).entries["/a"].value == b"2"
    await store.close()


def make_certificates(folder: Path) -> None:
    """A certificate authority, and a certificate of 127.0.0.1 that servers and clients show."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    new_key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *new_key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=ca", "-days", "2")
    openssl("req", *new_key, "-keyout", "node.key", "-out", "node.csr", "-subj", "/CN=node")
    Path(folder, "names").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
    signed = ("-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", "names")
    openssl("x509", "-req", "-in", "node.csr", "-out", "node.pem", *signed)


async def test_certificates_on_both_sides(tmp_path: Path) -> None:
    make_certificates(tmp_path)
    ca, cert, key = (str(tmp_path / name) for name in ("ca.pem", "node.pem", "node.key"))
    flags = ["--client-cert-auth", "--trusted-ca-file", ca, "--cert-file", cert, "--key-file", key]
    with LocalEtcd(flags=flags, scheme="https") as etcd:
        address = EtcdAddress(endpoints=etcd.endpoints, ca_file=ca, cert_file=cert, key_file=key)
        store = await EtcdStore.connect(address)
        await store.commit({}, {"/a": b"1"})
        await store.close()
        for stranger in (replace(address, cert_file="", key_file=""), replace(address, ca_file="", cert_file="")):
            with pytest.raises(Unavailable):
                await EtcdStore.connect(stranger)
        (endpoint,) = etcd.endpoints
        with pytest.raises(CallFailed, match="unable to get local issuer certificate"):
            await Channel.connect(endpoint, tls_context(replace(address, ca_file="")), seconds_max=5)
        with pytest.raises(CallFailed, match="certificate is not valid for 'localhost'"):
            await Channel.connect(endpoint.replace("127.0.0.1", "localhost"), tls_context(address), seconds_max=5)
    with pytest.raises(InvalidConfig, match="cannot read"):
        await EtcdStore.connect(replace(address, ca_file=str(tmp_path / "missing.pem")))
    with pytest.raises(InvalidConfig, match="cannot be used"):
        await EtcdStore.connect(replace(address, key_file=ca))


async def test_nothing_is_written_into_another_cluster(etcd: LocalEtcd) -> None:
    with LocalEtcd() as stranger:
        store = await connect(*etcd.endpoints, *stranger.endpoints)
        await store.commit({}, {"/a": b"1"})
        etcd.kill(0)
        with pytest.raises(Unavailable):
            await store.load("/")
        with pytest.raises(Unavailable):
            await store.commit({}, {"/a": b"2"})
        other = await connect(*stranger.endpoints)
        assert (await other.load("/")).entries == {}
        await other.close()
        await store.close()


async def test_nobody_there_is_said_plainly() -> None:
    with pytest.raises(Unavailable, match="no connection to etcd at 127"):
        await connect("127.0.0.1:1")


@pytest.mark.parametrize(
    "text", ["etcd://", "etcd://host:", "etcd://host:70000", "http://host:1", "etcd://me:pw@host:1"]
)
def test_addresses_that_name_no_etcd_are_refused(text: str) -> None:
    with pytest.raises(InvalidConfig):
        parse_endpoints(text)


def test_an_address_has_endpoints_and_perhaps_a_namespace() -> None:
    assert parse_endpoints("etcd://a:1,b, [::1]:3/prod/") == (("a:1", "b:2379", "[::1]:3"), "/prod")


@asynccontextmanager
async def member_that_is_behind(endpoint: str) -> AsyncIterator[str]:
    """A member that answers every read as it would have answered the first one, and is up to date otherwise."""
    channel = grpc.aio.insecure_channel(endpoint)
    first: dict[bytes, bytes] = {}

    class Forward(grpc.GenericRpcHandler):
        def service(self, details: Any) -> Any:
            async def answer(request: bytes, context: Any) -> bytes:
                if details.method == messages.RANGE and request in first:
                    return first[request]
                call: Any = channel.unary_unary(details.method)
                reply: bytes = await call(request)
                first.setdefault(request, reply)
                return reply

            return grpc.unary_unary_rpc_method_handler(answer)

    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Forward(),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield f"127.0.0.1:{port}"
    await server.stop(None)
    await channel.close()


async def test_no_decision_rests_on_the_answer_of_a_member_that_is_behind(etcd: LocalEtcd) -> None:
    async with member_that_is_behind(*etcd.endpoints) as behind:
        up_to_date, misled = await connect(*etcd.endpoints), await connect(behind)
        await up_to_date.commit({}, {"/a": b"old"})
        old = await misled.load("/a")
        await up_to_date.commit({}, {"/a": b"new"})
        assert await misled.load("/a") == old, "it cannot know better"
        with pytest.raises(Conflict):
            await misled.commit({"/a": old.entries["/a"].version}, {"/a": b"decided on what is old"})
        assert (await up_to_date.load("/a")).entries["/a"].value == b"new"
        await up_to_date.close()
        await misled.close()


async def test_what_a_store_has_seen_it_never_unsees(etcd: LocalEtcd) -> None:
    async with member_that_is_behind(*etcd.endpoints) as behind:
        alone, with_another = await connect(behind), await connect(behind, *etcd.endpoints)
        for store in (alone, with_another):
            await store.load("/a")
            await store.commit({}, {"/a": b"new"})
        assert (await with_another.load("/a")).entries["/a"].value == b"new"
        with pytest.raises(Unavailable, match="is behind"):
            await alone.load("/a")
        await alone.close()
        await with_another.close()
