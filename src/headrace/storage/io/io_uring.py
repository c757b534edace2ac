"""Asynchronous fdatasync through io_uring; implements only the subset that this needs.

The process writes submissions into a ring that it shares with the kernel, and the kernel writes completions into
another one. No thread waits for the disk in between, so that no thread has to be woken up and to acquire the GIL
between the completion and the event loop. docs/adr/0025 has the measurements.

Implemented here, because no library on PyPI has wheels for all supported platforms, and because only one of sixty
operations is needed. The layout is that of `include/uapi/linux/io_uring.h`, which is the same on every architecture.
"""

import ctypes
import errno
import mmap
import os
import struct
import sys

ENTRIES = 256  # syncs in flight; 40 KiB for both rings, and more than the kernel's workers run at once

_SETUP, _ENTER = 425, 426  # system call numbers, the same on every architecture but alpha
_WAIT_FOR_COMPLETIONS = 1  # IORING_ENTER_GETEVENTS
_ONE_MAPPING = 1  # IORING_FEAT_SINGLE_MMAP, since Linux 5.4: one mapping contains both rings
_OFFSET_OF_ENTRIES = 0x1000_0000  # IORING_OFF_SQES: where the mapping with the entries begins

# io_uring_params: sq_entries, cq_entries, flags, sq_thread_cpu, sq_thread_idle, features, wq_fd, resv[3]; then the
# offsets of the fields of both rings: head, tail, ring_mask, ring_entries, flags, dropped, array, resv1, user_addr, and
# head, tail, ring_mask, ring_entries, overflow, cqes, flags, resv1, user_addr.
_PARAMETERS = struct.Struct("=10I 8IQ 8IQ")
# io_uring_sqe: opcode, flags, ioprio, fd, off, addr, len, fsync_flags, user_data, and fields of other operations.
_ENTRY = struct.Struct("=BBHiQQIIQ24x")
_FSYNC, _DATA_ONLY = 3, 1  # IORING_OP_FSYNC, IORING_FSYNC_DATASYNC
# io_uring_cqe: user_data, res, flags.
_COMPLETION = struct.Struct("=QiI")
_WORD = 4
_COUNTER = 0xFFFF_FFFF  # heads and tails are free-running 32-bit counters

# PyDLL keeps the GIL: a submission takes microseconds, less than releasing and reacquiring the GIL.
_submitting = ctypes.PyDLL(None, use_errno=True).syscall
_waiting = ctypes.CDLL(None, use_errno=True).syscall


class IoUringFsync:
    """Submits fdatasync and collects completions.

    Not thread-safe. Raises OSError if the kernel does not support or permit it.
    """

    def __init__(self, entries: int = ENTRIES) -> None:
        if sys.platform != "linux":
            raise OSError("io_uring is Linux's")
        parameters = ctypes.create_string_buffer(_PARAMETERS.size)
        self._descriptor: int = _waiting(_SETUP, entries, parameters)
        if self._descriptor < 0:
            raise _last_error("io_uring_setup")
        try:
            self._map(_PARAMETERS.unpack(parameters.raw))
            self._try_out()
        except BaseException:
            os.close(self._descriptor)
            raise

    def _map(self, parameters: tuple[int, ...]) -> None:
        self.capacity, completions, features = parameters[0], parameters[1], parameters[5]
        if not features & _ONE_MAPPING:
            raise OSError("io_uring of a kernel before 5.4")
        submission_ring, completion_ring = parameters[10:19], parameters[19:28]
        array, self._cqes = submission_ring[6], completion_ring[5]
        size = max(array + self.capacity * _WORD, self._cqes + completions * _COMPLETION.size)
        self._rings = self._mapped(size, 0)
        self._entries = self._mapped(self.capacity * _ENTRY.size, _OFFSET_OF_ENTRIES)
        self._words = memoryview(self._rings)[: size // _WORD * _WORD].cast("I")
        self._submission_head, self._submission_tail, mask = (at // _WORD for at in submission_ring[:3])
        self._submission_mask = self._words[mask]
        self._completion_head, self._completion_tail, mask = (at // _WORD for at in completion_ring[:3])
        self._completion_mask = self._words[mask]
        for index in range(self.capacity):  # the ring refers to entries by index: slot i always uses entry i
            self._words[array // _WORD + index] = index

    def _mapped(self, size: int, offset: int) -> mmap.mmap:
        return mmap.mmap(
            self._descriptor,
            size,
            mmap.MAP_SHARED | mmap.MAP_POPULATE,
            mmap.PROT_READ | mmap.PROT_WRITE,
            offset=offset,
        )

    def _try_out(self) -> None:
        """Runs one sync.

        Some sandboxes have the system calls without the function: detected here, not at the first commit.
        """
        trial = os.memfd_create("headrace-sync-trial")
        try:
            self.push(trial, 1)
            if self.submit() != 1:
                raise OSError("io_uring takes no sync")
            self.wait()
            if self.completions() != [(1, 0)]:
                raise OSError("io_uring cannot sync")
        finally:
            os.close(trial)

    def fileno(self) -> int:
        """Returns the ring's descriptor, which is readable while there are completions."""
        return self._descriptor

    def push(self, descriptor: int, ticket: int) -> None:
        """Queues an fdatasync for the next `submit`. The caller keeps at most `capacity` of them in flight.

        The descriptor must stay open until the completion arrives: the kernel may use it only when the sync begins.
        """
        tail = self._words[self._submission_tail]
        at = (tail & self._submission_mask) * _ENTRY.size
        _ENTRY.pack_into(self._entries, at, _FSYNC, 0, 0, descriptor, 0, 0, 0, _DATA_ONLY, ticket)
        self._words[self._submission_tail] = (tail + 1) & _COUNTER

    def submit(self) -> int:
        """Submits what was pushed.

        Returns how many syncs have begun; the last ones, which have not, are removed from the ring.
        """
        head, tail = self._words[self._submission_head], self._words[self._submission_tail]
        pushed = (tail - head) & _COUNTER
        begun: int = _submitting(_ENTER, self._descriptor, pushed, 0, 0, None, 0)
        if begun == pushed:
            return pushed
        # The kernel is short of memory. It reads the tail only during this call, so that the tail can be reset.
        self._words[self._submission_tail] = self._words[self._submission_head]
        return max(0, begun)

    def completions(self) -> list[tuple[int, int]]:
        """Returns tickets with the results of fdatasync: 0, or a negative error number."""
        head, tail = self._words[self._completion_head], self._words[self._completion_tail]
        found = []
        for back in range((tail - head) & _COUNTER, 0, -1):
            # Indexed from the tail, for processors that read ahead: the address of an entry depends on the tail, so
            # that no entry is read before the tail is, and the kernel has written the entries by then.
            at = self._cqes + ((tail - back) & self._completion_mask) * _COMPLETION.size
            ticket, result, _ = _COMPLETION.unpack_from(self._rings, at)
            found.append((ticket, result))
        self._words[self._completion_head] = tail
        return found

    def wait(self) -> None:
        """Blocks until there is a completion. At least one sync must be in flight."""
        while _waiting(_ENTER, self._descriptor, 0, 1, _WAIT_FOR_COMPLETIONS, None, 0) < 0:
            if ctypes.get_errno() != errno.EINTR:
                raise _last_error("io_uring_enter")

    def close(self) -> None:
        os.close(self._descriptor)
        self._words.release()
        self._rings.close()
        self._entries.close()


def _last_error(call: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, f"{call}: {os.strerror(number)}")
