"""Conditional requests: If-Match and If-None-Match as RFC 9110 has them, and who may change a resource meanwhile.

Decides whether a request goes on, by the ETag of what the client would change or get. A request that fails for
another reason (404) fails for that reason.
"""

import asyncio
import hashlib
import re
from weakref import WeakValueDictionary

from starlette.datastructures import Headers

from headrace.gateway.problems import Problem

_TAG = re.compile(r'(?:W/)?"[^"]*"')
_READING = frozenset({"GET", "HEAD"})


class Locks:
    """One lock for each resource that is being changed: from reading its ETag until the change has been applied."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()

    def of(self, kind: str, name: str) -> asyncio.Lock:
        lock = self._locks.get((kind, name))
        if lock is None:
            lock = self._locks[kind, name] = asyncio.Lock()
        return lock


def etag(body: bytes) -> str:
    return f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'


def is_conditional(headers: Headers) -> bool:
    return "if-match" in headers or "if-none-match" in headers


def is_known(headers: Headers, method: str, tag: str) -> bool:
    """Whether the client has this representation already (304). Problem 412 if the request must not be carried out."""
    wanted, unwanted = headers.getlist("if-match"), headers.getlist("if-none-match")
    if wanted and not _names(wanted, tag, allow_weak=False):
        raise Problem(412, "If-Match names another ETag: it has changed since it was read; read it again")
    is_named = _names(unwanted, tag, allow_weak=True)
    if is_named and method not in _READING:
        raise Problem(412, "If-None-Match names its present ETag, or any")
    return is_named


def _names(lines: list[str], tag: str, *, allow_weak: bool) -> bool:
    """Whether a list of ETags has this one; `*` is any."""
    text = ",".join(lines)
    if text.strip() == "*":
        return True
    found = {one.removeprefix("W/") if allow_weak else one for one in _TAG.findall(text)}
    return tag in found
