"""A simulated disk as one process sees it: until the process or the power ends.

After that, its open files and its paths are invalid. Otherwise remains of a broker that lost power would continue to
sync on the disk of its successor.
"""

from headrace.storage.io.file_system import FileSystem
from headrace.testing.simulation.files import PowerLost, SimFile, SimFiles


class MountedDisk(FileSystem):
    def __init__(self, files: SimFiles) -> None:
        self._files = files
        self._boot = files.boots

    def _alive(self, path: str) -> SimFiles:
        if self._boot != self._files.boots:
            raise PowerLost(f"{path} is asked for by a process that is gone")
        return self._files

    def open(self, path: str, *, create: bool = False) -> SimFile:
        return self._alive(path).open(path, create=create)

    def read(self, path: str) -> bytes:
        return self._alive(path).read(path)

    def replace(self, path: str, data: bytes, *, sync: bool = True) -> None:
        self._alive(path).replace(path, data, sync=sync)

    def rename(self, old: str, new: str) -> None:
        self._alive(old).rename(old, new)

    def remove(self, path: str) -> None:
        self._alive(path).remove(path)

    def exists(self, path: str) -> bool:
        return self._alive(path).exists(path)

    def list(self, directory: str) -> list[str]:
        return self._alive(directory).list(directory)

    def make_dir(self, path: str) -> None:
        self._alive(path).make_dir(path)

    def remove_tree(self, path: str) -> None:
        self._alive(path).remove_tree(path)

    def sync_dir(self, path: str) -> None:
        self._alive(path).sync_dir(path)

    def boot_id(self) -> str:
        return self._files.boot_id()

    def identity(self, path: str) -> str:
        return self._files.identity(path)

    def free_bytes(self, path: str) -> int:
        return self._alive(path).free_bytes(path)

    def total_bytes(self, path: str) -> int:
        return self._alive(path).total_bytes(path)
