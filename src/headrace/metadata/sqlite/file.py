"""The SQLite file with the cluster metadata: its schema, the verification of records, and the mapping of errors.

Used by one thread, synchronously. Independent of event loops and of the expiration of leases.

    facts   key │ value │ version │ checksum │ leased     one row per key
    state   revision │ fact_count                         one row; a lost record shows as a wrong count
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from zlib import crc32

from headrace.metadata.sqlite.wal_check import commit_lost_after
from headrace.metadata.store import Change, Entry
from headrace.model.errors import CorruptLog, DiskFull, StorageError

if TYPE_CHECKING:
    import sqlite3

SCHEMA_VERSION = 1

# The order matters: exclusive locking before WAL keeps the WAL's index in this process's memory instead of in a shared
# file, and prevents other processes from opening the metadata of a running node. FULL syncs the WAL at every commit.
_PRAGMAS = (("locking_mode", "exclusive"), ("journal_mode", "wal"), ("synchronous", "full"))

_CREATE = (
    "CREATE TABLE facts (key TEXT PRIMARY KEY, value BLOB NOT NULL, version INTEGER NOT NULL,"
    " checksum INTEGER NOT NULL, leased INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE state (revision INTEGER NOT NULL, fact_count INTEGER NOT NULL)",
    "INSERT INTO state VALUES (0, 0)",
    f"PRAGMA user_version={SCHEMA_VERSION}",
)


class SqliteFile:
    """Used by one thread only, from the first call to the last."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._broken = False
        self._fact_count = 0
        with self._errors():
            self._db = self._open()

    def read(self) -> tuple[list[Entry], int]:
        """Returns all records, verified, and the revision; deletes the keys whose lease ended with the last process."""
        with self._errors(), self._closed_on_error():
            rows = self._db.execute("SELECT key, value, version, checksum FROM facts").fetchall()
            for key, value, version, checksum in rows:
                if checksum != _checksum(key, value, version):
                    raise CorruptLog(f"the metadata record {key} in {self._path} fails its checksum")
            revision, fact_count = self._db.execute("SELECT revision, fact_count FROM state").fetchone()
            if len(rows) != fact_count:
                raise CorruptLog(f"{self._path} holds {len(rows)} records instead of {fact_count}")
            self._fact_count = fact_count
            orphans = {key for (key,) in self._db.execute("SELECT key FROM facts WHERE leased")}
            if orphans:
                revision += 1
                self.write(Change(revision, dict.fromkeys(orphans)), leased=False)
        return [Entry(key, value, version) for key, value, version, _ in rows if key not in orphans], revision

    def write(self, change: Change, leased: bool) -> None:
        """Returns when the change is on disk. After DiskFull it is not; after any other error its state is unknown."""
        if self._broken:
            raise StorageError(f"{self._path} failed earlier and takes no writes until the node restarts")
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                fact_count = self._fact_count
                for key, value in change.writes.items():
                    fact_count += self._write_one(key, value, change.revision, leased)
                self._db.execute("UPDATE state SET revision = ?, fact_count = ?", (change.revision, fact_count))
                self._db.execute("COMMIT")
            except BaseException:
                self._roll_back()
                raise
            self._fact_count = fact_count

    def close(self) -> None:
        with self._errors():
            self._db.close()

    def _open(self) -> "sqlite3.Connection":
        import sqlite3  # here, on the store's thread: it takes longer than opening the file

        wal_before = self._read_wal()
        db = sqlite3.connect(self._path, isolation_level=None, timeout=0)
        try:
            for pragma, wanted in _PRAGMAS:
                answer = db.execute(f"PRAGMA {pragma}={wanted}").fetchone()
                if answer is not None and answer[0] != wanted:
                    raise StorageError(f"{self._path}: SQLite cannot set {pragma} to {wanted} here")
            self._check_schema(db)
            if wal_before:
                self._check_wal(db, wal_before)
        except BaseException:
            db.close()
            raise
        return db

    def _read_wal(self) -> bytes:
        """Returns the WAL of the last process: empty after a clean shutdown."""
        try:
            with open(self._path + "-wal", "rb") as wal:
                return wal.read()
        except FileNotFoundError:
            return b""
        except OSError as error:
            raise StorageError(f"{self._path}-wal: {error.strerror}") from error

    def _check_schema(self, db: "sqlite3.Connection") -> None:
        (version,) = db.execute("PRAGMA user_version").fetchone()
        if version == 0:
            db.execute("BEGIN IMMEDIATE")
            for statement in _CREATE:
                db.execute(statement)
            db.execute("COMMIT")
        elif version != SCHEMA_VERSION:
            raise StorageError(
                f"{self._path} has format {version}, this version of headrace reads {SCHEMA_VERSION};"
                " start it with the version that wrote it"
            )

    def _check_wal(self, db: "sqlite3.Connection", wal_before: bytes) -> None:
        """Raises CorruptLog if acknowledged commits are lost: SQLite truncates a corrupt WAL as it does a torn one."""
        _, recovered_frames, _ = db.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()
        if commit_lost_after(max(0, recovered_frames), wal_before):
            raise CorruptLog(f"{self._path}-wal is corrupt: metadata committed after the corruption is unreadable")

    def _write_one(self, key: str, value: bytes | None, version: int, leased: bool) -> int:
        """Writes one key. Returns the change of the number of records."""
        if value is None:
            return -self._db.execute("DELETE FROM facts WHERE key = ?", (key,)).rowcount
        row = (value, version, _checksum(key, value, version), leased, key)
        update = "UPDATE facts SET value = ?, version = ?, checksum = ?, leased = ? WHERE key = ?"
        if self._db.execute(update, row).rowcount:
            return 0
        insert = "INSERT INTO facts (value, version, checksum, leased, key) VALUES (?, ?, ?, ?, ?)"
        self._db.execute(insert, row)
        return 1

    def _roll_back(self) -> None:
        import sqlite3

        with suppress(sqlite3.Error):  # after some errors SQLite has rolled back already
            self._db.execute("ROLLBACK")

    @contextmanager
    def _closed_on_error(self) -> Iterator[None]:
        """Closes the file if it cannot be read: no store exists yet that would close it."""
        try:
            yield
        except BaseException:
            self._db.close()
            raise

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Maps SQLite's errors to headrace's. After any error but a full disk, the content of the disk is unknown."""
        import sqlite3

        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", None)
            if code == sqlite3.SQLITE_FULL:
                raise DiskFull(f"no disk space to write {self._path}: free some space") from error
            if code == sqlite3.SQLITE_BUSY:
                raise StorageError(f"{self._path} is in use by another process") from error
            self._broken = True
            raise StorageError(f"{self._path}: {error}") from error


def _checksum(key: str, value: bytes, version: int) -> int:
    return crc32(value, crc32(f"{key}\n{version}\n".encode()))
