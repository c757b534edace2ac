from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.metadata.etcd import messages
from headrace.metadata.etcd import messages as pb
from headrace.metadata.etcd.errors import Next, judge
from headrace.metadata.etcd.grpc_client.call import Status
from headrace.metadata.store import Compacted, LeaseExpired, StoreAccessDenied, Unavailable
from headrace.model.errors import DiskFull, ProtocolError


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=300))))
def test_what_is_written_is_read(written: list[tuple[int, int | bytes]]) -> None:
    encoded = b"".join(
        pb.integer(field, value) if isinstance(value, int) else pb.message(field, value) for field, value in written
    )
    read = [(field, data or number) for field, number, data in pb.fields(encoded)]
    assert read == [(field, value or 0) for field, value in written if value != 0]


@given(st.binary(max_size=200))
def test_garbage_is_a_protocol_error_and_nothing_else(garbage: bytes) -> None:
    for read in (messages.range_reply, messages.txn_reply, messages.watch_reply, messages.lease_reply):
        with suppress(ProtocolError):
            read(garbage)


def test_known_bytes() -> None:
    """As etcd's own Go code writes them."""
    assert pb.integer(3, 300) == b"\x18\xac\x02"
    assert pb.integer(1, -1) == b"\x08" + b"\xff" * 9 + b"\x01"
    assert messages.put(b"k", b"v", 5) == b"\x12\x08\x0a\x01k\x12\x01v\x18\x05"
    assert messages.version_is(b"k", 7) == b"\x10\x02\x1a\x01k\x30\x07"


@pytest.mark.parametrize(
    ("prefix", "end"),
    [(b"/a/", b"/a0"), (b"a\xff", b"b"), (b"\xff\xff", b"\0"), (b"", b"\0"), (b"/\xc3\xbf", b"/\xc3\xc0")],
)
def test_the_end_of_a_prefix_is_the_first_key_behind_it(prefix: bytes, end: bytes) -> None:
    assert messages.prefix_end(prefix) == end


@pytest.mark.parametrize(
    ("status", "details", "step", "error"),
    [
        (Status.UNAVAILABLE, "etcdserver: no leader", Next.MOVE_ON, Unavailable),
        (Status.UNAVAILABLE, "etcdserver: request timed out", Next.UNCERTAIN, Unavailable),
        (Status.UNAVAILABLE, "etcdserver: leader changed", Next.UNCERTAIN, Unavailable),
        (Status.DEADLINE_EXCEEDED, "", Next.UNCERTAIN, Unavailable),
        (Status.NOT_FOUND, "etcdserver: requested lease not found", Next.RAISE, LeaseExpired),
        (Status.OUT_OF_RANGE, "etcdserver: mvcc: required revision has been compacted", Next.RAISE, Compacted),
        (Status.RESOURCE_EXHAUSTED, "etcdserver: mvcc: database space exceeded", Next.RAISE, DiskFull),
        (Status.PERMISSION_DENIED, "etcdserver: permission denied", Next.RAISE, StoreAccessDenied),
        (Status.UNAUTHENTICATED, "etcdserver: invalid auth token", Next.LOG_IN, StoreAccessDenied),
    ],
)
def test_an_error_of_etcd_means(status: Status, details: str, step: Next, error: type[Exception]) -> None:
    decided, raised = judge(status, details)
    assert (decided, type(raised)) == (step, error)
