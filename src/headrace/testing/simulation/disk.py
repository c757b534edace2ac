"""The directory tree of SimFiles: what the running system sees, and what would be left after a power loss.

Every file and directory exists twice: as the running system sees it, and as it was last synced. Bytes become durable
when their file is synced, names when their directory is. Faults are injected in `files.py`.
"""

import os
from dataclasses import dataclass, field
from random import Random

from headrace.model.errors import MissingFile, StorageError

NAME_BYTES_MAX = 255  # NAME_MAX of Linux file systems


class Inode:
    """The bytes of one file: a memfd as the page cache (`sendfile` works on it), a bytearray as the disk."""

    def __init__(self, label: str) -> None:
        # The kernel limits the label to 249 bytes.
        self.descriptor = os.memfd_create(label[:200])
        self.size = 0
        self.modified_ms = 0
        self.durable = bytearray()
        self.dirty_from = 0  # disk and cache are equal below this position
        self._dirty_to = 0  # and from here on, if this position is higher
        self._was_cut = False  # truncated since the last sync

    def write(self, data: bytes | bytearray | memoryview, position: int) -> None:
        os.pwrite(self.descriptor, data, position)
        self.size = max(self.size, position + len(data))
        self.dirty_from = min(self.dirty_from, position)
        self._dirty_to = max(self._dirty_to, position + len(data))

    def read(self, position: int, length: int) -> bytes:
        return os.pread(self.descriptor, length, position)

    def truncate(self, size: int) -> None:
        os.ftruncate(self.descriptor, size)
        self.size = size
        self.dirty_from, self._dirty_to = min(self.dirty_from, size), min(self._dirty_to, size)
        self._was_cut = True

    def sync(self) -> None:
        self.durable[self.dirty_from :] = self.read(self.dirty_from, self.size - self.dirty_from)
        self._is_clean()

    def _is_clean(self) -> None:
        self.dirty_from, self._dirty_to, self._was_cut = self.size, 0, False

    def fail_sync(self) -> None:
        """Fails a sync as on Linux: pages that could not be written are marked clean, so no later sync retries them.

        On disk their range has its previous content: zeros.
        """
        self.durable[self.dirty_from :] = bytes(self.size - self.dirty_from)
        self._is_clean()

    def lose_power(self, torn: Random | None) -> None:
        """Resets the file to its durable content.

        With `torn`, a random part of the unsynced bytes was written as well.
        """
        if torn is not None and self._dirty_to > self.dirty_from:
            arrived = torn.randint(0, self._dirty_to - self.dirty_from)
            # Bytes that were only to be overwritten are still there behind it.
            rest = b"" if self._was_cut else self.durable[self.dirty_from + arrived :]
            self.durable[self.dirty_from :] = self.read(self.dirty_from, arrived) + rest
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, self.durable, 0)
        self.size = len(self.durable)
        self._is_clean()

    def flip_bit(self, position: int, bit: int) -> None:
        if not 0 <= position < self.size:
            raise ValueError(f"no byte {position} in a file of {self.size} bytes")
        os.pwrite(self.descriptor, bytes([self.read(position, 1)[0] ^ (1 << bit)]), position)
        if position < len(self.durable):
            self.durable[position] ^= 1 << bit

    def release(self) -> None:
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1


@dataclass(slots=True, eq=False)
class Folder:
    entries: dict[str, "Node"] = field(default_factory=dict)
    durable: dict[str, "Node"] = field(default_factory=dict)


Node = Inode | Folder


@dataclass(slots=True, frozen=True)
class NameChange:
    """One atomic change of directory entries, each with its new node (None: the name is removed)."""

    entries: tuple[tuple[Folder, str, Node | None], ...]

    def apply(self) -> None:
        for folder, name, node in self.entries:
            _set(folder.entries, name, node)

    def persist(self) -> None:
        for folder, name, node in self.entries:
            _set(folder.durable, name, node)

    def touches(self, folder: Folder) -> bool:
        return any(changed is folder for changed, _, _ in self.entries)


def _set(entries: dict[str, Node], name: str, node: Node | None) -> None:
    if node is None:
        entries.pop(name, None)
    else:
        entries[name] = node


class SimDisk:
    """The tree, and the changes of names that no `sync_dir` has made durable yet, in order."""

    def __init__(self) -> None:
        self.root = Folder()
        self.pending: list[NameChange] = []
        self._inodes: list[Inode] = []

    def new_inode(self, label: str) -> Inode:
        inode = Inode(label)
        self._inodes.append(inode)
        return inode

    def find(self, path: str) -> Node | None:
        node: Node = self.root
        for part in _parts(path):
            if not isinstance(node, Folder) or part not in node.entries:
                return None
            node = node.entries[part]
        return node

    def place(self, path: str) -> tuple[Folder, str]:
        """Returns the directory that contains the last name of the path, and that name."""
        *above, name = _parts(path)
        if len(name.encode()) > NAME_BYTES_MAX:
            raise StorageError(f"{path}: File name too long (simulated)")
        folder = self.find("/".join(above))
        if not isinstance(folder, Folder):
            raise MissingFile(f"{path}: no such directory on the simulated disk")
        return folder, name

    def change(self, *entries: tuple[Folder, str, Node | None]) -> None:
        change = NameChange(entries)
        change.apply()
        self.pending.append(change)

    def sync_names(self, folder: Folder) -> None:
        waiting: list[NameChange] = []
        for change in self.pending:
            if change.touches(folder):
                change.persist()
            else:
                waiting.append(change)
        self.pending = waiting

    def lose_power(self, torn: Random | None) -> None:
        """Resets the tree to its durable content.

        As on a journaling file system, a prefix of the unsynced name changes survives.
        """
        survivors = torn.randint(0, len(self.pending)) if torn is not None else 0
        for change in self.pending[:survivors]:
            change.persist()
        self.pending = []
        self._restore(self.root, torn)

    def _restore(self, folder: Folder, torn: Random | None) -> None:
        folder.entries = dict(folder.durable)
        for node in folder.entries.values():
            if isinstance(node, Folder):
                self._restore(node, torn)
            else:
                node.lose_power(torn)

    def used_bytes(self) -> int:
        return _used(self.root)

    def release(self) -> None:
        for inode in self._inodes:
            inode.release()


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


def _used(folder: Folder) -> int:
    return sum(_used(node) if isinstance(node, Folder) else node.size for node in folder.entries.values())
