"""File lock that admits one process per data directory. The operating system releases it when the process ends."""

import fcntl
import os

from headrace.model.errors import StorageError
from headrace.storage.io.file_system import as_storage_error


class DirectoryLock:
    def __init__(self, directory: str) -> None:
        path = os.path.join(directory, ".lock")
        try:
            os.makedirs(directory, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise as_storage_error(error, path) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._descriptor)
            raise StorageError(
                f"{directory} is in use by another process; stop it or choose another data directory"
            ) from None
        except OSError as error:
            os.close(self._descriptor)
            raise as_storage_error(error, path) from error

    def release(self) -> None:
        os.close(self._descriptor)
