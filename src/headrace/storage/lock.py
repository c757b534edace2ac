"""One process per data directory, held by the operating system so that a crash lets go."""

import fcntl
import os

from headrace.model.errors import StorageError


class DirectoryLock:
    def __init__(self, directory: str) -> None:
        os.makedirs(directory, exist_ok=True)
        path = os.path.join(directory, ".lock")
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(self._descriptor)
            raise StorageError(
                f"{directory} is in use by another process; stop it or choose another data directory"
            ) from None

    def release(self) -> None:
        os.close(self._descriptor)
