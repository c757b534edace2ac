"""What the kernel tells of syncs through its rings, and that the rings can go round."""

import errno
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.storage.io.io_uring import IoUringFsync


@pytest.fixture
def ring() -> Iterator[IoUringFsync]:
    try:
        ring = IoUringFsync(4)
    except OSError as error:
        pytest.skip(f"no io_uring here: {error}")
    yield ring
    ring.close()


@pytest.fixture
def descriptor(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT)
    os.write(descriptor, b"something to sync")
    yield descriptor
    os.close(descriptor)


def results(ring: IoUringFsync, count: int) -> dict[int, int]:
    found: dict[int, int] = {}
    while len(found) < count:
        ring.wait()
        found.update(ring.completions())
    return found


def test_a_sync_comes_back_with_its_ticket(ring: IoUringFsync, descriptor: int) -> None:
    ring.push(descriptor, 2**63 + 5)
    assert ring.submit() == 1
    assert results(ring, 1) == {2**63 + 5: 0}
    assert ring.completions() == []


def test_several_begin_at_once_and_each_has_its_own_result(ring: IoUringFsync, descriptor: int) -> None:
    with socket.socket() as no_file:
        ring.push(descriptor, 1)
        ring.push(no_file.fileno(), 2)
        ring.push(99_999, 3)
        assert ring.submit() == 3
        assert results(ring, 3) == {1: 0, 2: -errno.EINVAL, 3: -errno.EBADF}


def test_the_rings_go_round(ring: IoUringFsync, descriptor: int) -> None:
    for turn in range(50):
        tickets = [turn * 10 + number for number in range(1 + turn % ring.capacity)]
        for ticket in tickets:
            ring.push(descriptor, ticket)
        assert ring.submit() == len(tickets)
        assert results(ring, len(tickets)) == dict.fromkeys(tickets, 0)


def test_its_descriptor_is_readable_while_there_are_results(ring: IoUringFsync, descriptor: int) -> None:
    poll = select.poll()
    poll.register(ring.fileno(), select.POLLIN)
    assert poll.poll(0) == []
    ring.push(descriptor, 1)
    ring.submit()
    assert poll.poll(5_000) == [(ring.fileno(), select.POLLIN)]
    ring.completions()
    assert poll.poll(0) == []


def test_what_the_kernel_does_not_take_is_forgotten(ring: IoUringFsync, descriptor: int) -> None:
    ring.push(descriptor, 1)
    held = os.dup(ring.fileno())
    os.dup2(descriptor, ring.fileno())  # now the call fails as a whole: this is no ring
    try:
        assert ring.submit() == 0
    finally:
        os.dup2(held, ring.fileno(), inheritable=False)
        os.close(held)
    ring.push(descriptor, 2)
    assert ring.submit() == 1
    assert results(ring, 1) == {2: 0}


def test_closing_leaves_no_descriptor_open(ring: IoUringFsync) -> None:
    before = set(os.listdir("/proc/self/fd"))
    IoUringFsync(4).close()
    assert set(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("entries", [0, 1_000_000])
def test_what_the_kernel_refuses_is_an_error_that_says_so(ring: IoUringFsync, entries: int) -> None:
    before = set(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match="io_uring_setup: Invalid argument"):
        IoUringFsync(entries)
    assert set(os.listdir("/proc/self/fd")) == before
