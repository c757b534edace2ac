"""Syncs that the kernel does by itself: io_uring, as much of it as fdatasync takes.

The program writes what it wants into one ring that it shares with the kernel, the kernel writes what has become of it
into another. No thread of ours waits for the disk in between: nobody has to be woken up, and get hold of the
interpreter, between the disk's answer and the loop. docs/adr/0025 has what that gives.

By hand, because none of the libraries on PyPI has wheels for everything we run on, and because one operation of sixty
is all we need. The layout is that of `include/uapi/linux/io_uring.h`, which is the same on every machine.
"""

import ctypes
import errno
import mmap
import os
import struct
import sys

ENTRIES = 256  # syncs under way at a time; 40 KiB for both rings, and more than the kernel's workers do at once

_SETUP, _ENTER = 425, 426  # numbers of the system calls, on every architecture but alpha
_WAIT_FOR_COMPLETIONS = 1  # IORING_ENTER_GETEVENTS
_ONE_MAPPING = 1  # IORING_FEAT_SINGLE_MMAP, since Linux 5.4: one mapping has both rings
_OFFSET_OF_ENTRIES = 0x1000_0000  # IORING_OFF_SQES: where the mapping with the entries begins

# io_uring_params: sq_entries, cq_entries, flags, sq_thread_cpu, sq_thread_idle, features, wq_fd, resv[3]; then where
# the fields of both rings are: head, tail, ring_mask, ring_entries, flags, dropped, array, resv1, user_addr, and
# head, tail, ring_mask, ring_entries, overflow, cqes, flags, resv1, user_addr.
_PARAMETERS = struct.Struct("=10I 8IQ 8IQ")
# io_uring_sqe: opcode, flags, ioprio, fd, off, addr, len, fsync_flags, user_data, and what other operations need.
_ENTRY = struct.Struct("=BBHiQQIIQ24x")
_FSYNC, _DATA_ONLY = 3, 1  # IORING_OP_FSYNC, IORING_FSYNC_DATASYNC
# io_uring_cqe: user_data, res, flags.
_COMPLETION = struct.Struct("=QiI")
_WORD = 4
_COUNTER = 0xFFFF_FFFF  # heads and tails count on and on, in 32 bits

# A submission takes microseconds: giving the interpreter away for it, and waiting to get it back, would take longer.
_submitting = ctypes.PyDLL(None, use_errno=True).syscall
_waiting = ctypes.CDLL(None, use_errno=True).syscall


class IoUringFsync:
    """For one thread. OSError where the kernel is too old for it, or does not let us."""

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
        for index in range(self.capacity):  # the ring refers to entries by number: the first to the first, and so on
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
        """Some sandboxes have the calls and not what they are for: better to know now than at the first commit."""
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
        """Readable as long as there are completions."""
        return self._descriptor

    def push(self, descriptor: int, ticket: int) -> None:
        """Sync this file with the next `submit`. Whoever pushes sees that no more than `capacity` are under way.

        The descriptor must stay open until the completion is there: the kernel may look at it only when it begins.
        """
        tail = self._words[self._submission_tail]
        at = (tail & self._submission_mask) * _ENTRY.size
        _ENTRY.pack_into(self._entries, at, _FSYNC, 0, 0, descriptor, 0, 0, 0, _DATA_ONLY, ticket)
        self._words[self._submission_tail] = (tail + 1) & _COUNTER

    def submit(self) -> int:
        """How many of those that were pushed have begun; the last ones have not, and are forgotten."""
        head, tail = self._words[self._submission_head], self._words[self._submission_tail]
        pushed = (tail - head) & _COUNTER
        begun: int = _submitting(_ENTER, self._descriptor, pushed, 0, 0, None, 0)
        if begun == pushed:
            return pushed
        # Short of memory. The kernel looks at the tail in this call alone, so it can be taken back.
        self._words[self._submission_tail] = self._words[self._submission_head]
        return max(0, begun)

    def completions(self) -> list[tuple[int, int]]:
        """Tickets with what fdatasync returned for them: 0, or a negative error number."""
        head, tail = self._words[self._completion_head], self._words[self._completion_tail]
        found = []
        for back in range((tail - head) & _COUNTER, 0, -1):
            # Reckoned from the tail, for processors that read ahead: nothing can be read by an address that depends on
            # the tail before the tail is, and what it covers has been written then.
            at = self._cqes + ((tail - back) & self._completion_mask) * _COMPLETION.size
            ticket, result, _ = _COMPLETION.unpack_from(self._rings, at)
            found.append((ticket, result))
        self._words[self._completion_head] = tail
        return found

    def wait(self) -> None:
        """Returns when there is a completion; there must be one to come."""
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
