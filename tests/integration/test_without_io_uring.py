"""Where the kernel does not sync logs by itself, threads do, and nobody notices anything else."""

import ctypes
import errno
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from headrace.broker.replica.flush_backends import open_ring
from headrace.testing import LocalBroker

MESSAGES = 20

# What a process runs that may not use io_uring: its own broker, and what the doctor says.
IN_A_CONTAINER = """
import sys
from pathlib import Path
from headrace.cli.doctor.checks import kernel_syncs
from headrace.config.settings import Settings
from headrace.testing import LocalBroker
from tests.integration.test_without_io_uring import forbid_io_uring, is_synced_by_the_kernel, produce

forbid_io_uring()
with LocalBroker(data_dir=Path(sys.argv[1])) as broker:
    produce(broker.bootstrap)
    assert not is_synced_by_the_kernel(broker.pid)
print(kernel_syncs(Settings()).found)
"""


class Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def forbid_io_uring() -> None:
    """As container runtimes do it: the kernel refuses one system call to this process and all that it starts."""
    load_number, compare, answer = 0x20, 0x15, 0x06  # BPF_LD+W+ABS, BPF_JMP+JEQ+K, BPF_RET+K
    refused, allowed = 0x0005_0000 | errno.EPERM, 0x7FFF_0000  # SECCOMP_RET_ERRNO, SECCOMP_RET_ALLOW
    io_uring_setup = 425
    code = struct.pack("=" + "HBBI" * 4, *(load_number, 0, 0, 0), *(compare, 0, 1, io_uring_setup),
                       *(answer, 0, 0, refused), *(answer, 0, 0, allowed))  # fmt: skip
    buffer = ctypes.create_string_buffer(code)
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.prctl(38, 1, 0, 0, 0) == 0  # PR_SET_NO_NEW_PRIVS
    assert libc.prctl(22, 2, ctypes.byref(Filter(4, ctypes.addressof(buffer)))) == 0  # PR_SET_SECCOMP, by a filter


def is_synced_by_the_kernel(pid: int) -> bool:
    """The kernel's workers for a ring are threads of its process, by this name, and stay for some seconds."""
    return any(name.read_text().startswith("iou-wrk-") for name in Path(f"/proc/{pid}/task").glob("*/comm"))


def produce(bootstrap: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0, "acks": "all", "log_level": 0})
    failures: list[object] = []
    for number in range(MESSAGES):
        producer.produce("t", b"%d" % number, on_delivery=lambda error, _: error and failures.append(error))
        assert producer.flush(30) == 0
    assert not failures


def test_by_default_the_kernel_syncs(tmp_path: Path) -> None:
    ring = open_ring()
    if ring is None:
        pytest.skip("no io_uring here")
    ring.close()
    with LocalBroker(data_dir=tmp_path) as broker:
        produce(broker.bootstrap)
        assert is_synced_by_the_kernel(broker.pid)


def test_it_can_be_switched_off(tmp_path: Path) -> None:
    with LocalBroker(data_dir=tmp_path, settings={"log.flush.io.uring.enable": "false"}) as broker:
        produce(broker.bootstrap)
        assert not is_synced_by_the_kernel(broker.pid)


def test_where_it_is_forbidden_threads_sync(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", IN_A_CONTAINER, tmp_path], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert "unavailable (io_uring_setup: Operation not permitted); the thread pool syncs the logs" in done.stdout
