"""Classifies etcd's errors: whether to retry, on which member, and whether the request may have been executed.

Pure; performs no I/O. Uses the status code and, where etcd has one code for several errors, its text.
"""

from enum import Enum

from headrace.metadata.etcd.grpc_client.call import Status
from headrace.metadata.store import Compacted, LeaseExpired, StoreAccessDenied, Unavailable
from headrace.model.errors import DiskFull, HeadraceError, StorageError


class Next(Enum):
    """Next step after a failed attempt."""

    RAISE = "the response is an error that every member would return"
    LOG_IN = "the token is not valid any more; nothing was done"
    MOVE_ON = "this member cannot serve now; nothing was done"
    UNCERTAIN = "no response: the request may have been or may still be executed"


# etcd returns these errors before a request is proposed to the other members, so that it was not executed.
_NOT_BEGUN = (
    "etcdserver: no leader",
    "etcdserver: not capable",
    "etcdserver: rpc not supported for learner",
    "etcdserver: too many requests",
)
_TOKEN = ("etcdserver: invalid auth token", "etcdserver: revision of auth store is old")
_ACCESS = {
    "etcdserver: user name is empty": "etcd requires a user: set etcd.user and etcd.password_file",
    "etcdserver: authentication failed": "etcd does not accept etcd.user with this password",
    "etcdserver: authentication is not enabled": "etcd has no users; remove etcd.user",
    "etcdserver: permission denied": "etcd.user may not read and write there; grant it readwrite on the prefix",
}


def judge(status: Status, details: str) -> tuple[Next, HeadraceError]:
    """Returns the next step, and the error to raise if there is no further attempt."""
    for beginning, meaning in _ACCESS.items():
        if details.startswith(beginning):
            return Next.RAISE, StoreAccessDenied(f"{meaning} ({details})")
    if details.startswith(_TOKEN) or status is Status.UNAUTHENTICATED:
        return Next.LOG_IN, StoreAccessDenied(f"etcd does not accept our token: {details}")
    if "requested lease not found" in details:
        return Next.RAISE, LeaseExpired("the lease is over")
    if status is Status.OUT_OF_RANGE and "compacted" in details:
        return Next.RAISE, Compacted("etcd has forgotten that revision; load again")
    if "database space exceeded" in details:
        return Next.RAISE, DiskFull("etcd's database is full: compact and defragment it, then disarm its alarm")
    if details.startswith(_NOT_BEGUN):
        return Next.MOVE_ON, Unavailable(f"etcd cannot serve now: {details}")
    if status in (Status.INVALID_ARGUMENT, Status.FAILED_PRECONDITION, Status.UNIMPLEMENTED, Status.PERMISSION_DENIED):
        return Next.RAISE, StorageError(f"etcd rejected a request: {details}")
    return Next.UNCERTAIN, Unavailable(f"etcd did not respond: {details or status.name}")
