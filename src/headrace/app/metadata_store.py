"""Opens the metadata store of a node's settings, with the etcd member that it may need, and closes both in order."""

import asyncio
import importlib
import logging
import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, TypeVar

from headrace.broker.runtime.shutdown_steps import StopSteps
from headrace.config.settings import Settings
from headrace.config.settings_builder import UNIX_SCHEME
from headrace.metadata.store import Store, Unavailable
from headrace.model.clock import Clock
from headrace.model.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.app.etcd.member import EtcdMember
    from headrace.metadata.etcd.store import EtcdStore

log = logging.getLogger(__name__)

Result = TypeVar("Result")

METADATA_FILE = "metadata.sqlite"
LEARN_SECONDS = 10.0  # refresh interval of the etcd members' addresses, which change when a member joins


class Metadata:
    """Owner of a node's metadata store. `await open()` returns the store; a shared one waits for a majority of etcd."""

    def __init__(self, settings: Settings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._store: Store | None = None
        self._member: EtcdMember | None = None
        self._learning: asyncio.Task[None] | None = None

    async def open(self) -> Store:
        self._store = await self._open()
        return self._store

    async def close(self) -> None:
        """Stops the etcd member last: until then other parts of the node may still write metadata."""
        steps = StopSteps()
        if self._learning is not None:
            self._learning.cancel()
            await asyncio.wait((self._learning,))
        if self._store is not None:
            await steps.run(self._store.close)
        if self._member is not None:
            await steps.run(self._member.stop)
        steps.raise_first()

    async def _open(self) -> Store:
        settings = self._settings
        if settings.metadata.startswith(UNIX_SCHEME):
            from headrace.metadata.unix_socket.client import UnixSocketStore

            return await UnixSocketStore.connect(settings.metadata.removeprefix(UNIX_SCHEME))
        if settings.is_clustered:
            return await self._open_etcd()
        if settings.in_memory:
            from headrace.metadata.embedded import MemoryStore

            return MemoryStore(self._clock)
        from headrace.metadata.sqlite.store import SqliteStore

        return await SqliteStore.open(os.path.join(settings.data_dir, METADATA_FILE), self._clock)

    async def _open_etcd(self) -> Store:
        if self._settings.metadata:
            from headrace.app.etcd.member_config import etcd_address
            from headrace.metadata.etcd.store import EtcdStore

            return await EtcdStore.connect(etcd_address(self._settings))
        if self._settings.runs_etcd:
            return await self._open_as_member()
        store = await self._connect_when_possible(lambda: ())
        self._learning = asyncio.create_task(_keep_learning(store, lambda: ()))
        return store

    async def _open_as_member(self) -> Store:
        from headrace.app.etcd.member import EtcdMember
        from headrace.app.etcd.member_config import peer_url

        member = self._member = EtcdMember(self._settings)

        def own() -> tuple[str, ...]:
            return (member.target,)

        # Imported while this node waits for other members, where it costs no time.
        loading = asyncio.create_task(asyncio.to_thread(importlib.import_module, "headrace.metadata.etcd.store"))
        await member.start()
        await loading
        self._store = store = await _unless(member.ended(), self._connect_when_possible(own))
        from headrace.metadata.etcd.store import promote_when_ready

        await promote_when_ready(store.connection, peer_url(self._settings, self._settings.cluster.rpc_addr))
        member.supervise()
        self._learning = asyncio.create_task(_keep_learning(store, own))
        return store

    async def _connect_when_possible(self, first: Callable[[], tuple[str, ...]]) -> "EtcdStore":
        """Waits for a majority of etcd's members."""
        from headrace.app.etcd.bootstrap import ASK_AGAIN_SECONDS, client_targets
        from headrace.app.etcd.member_config import etcd_address
        from headrace.metadata.etcd.store import EtcdStore

        while True:
            targets = (*first(), *await client_targets(self._settings))
            try:
                if not targets:
                    raise Unavailable("no member of cluster.initial_members responds")
                return await EtcdStore.connect(etcd_address(self._settings, targets))
            except Unavailable as error:
                log.info("waiting for a majority of etcd's members: %s", error)
                await asyncio.sleep(ASK_AGAIN_SECONDS)


async def _unless(trouble: Coroutine[Any, Any, None], work: Coroutine[Any, Any, Result]) -> Result:
    """Returns the result of `work`, unless `trouble` raises first."""
    watching, working = asyncio.ensure_future(trouble), asyncio.ensure_future(work)
    try:
        await asyncio.wait((watching, working), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            watching.result()
        return working.result()
    finally:
        for future in (watching, working):
            future.cancel()
        await asyncio.wait((watching, working))


async def _keep_learning(store: "EtcdStore", first: Callable[[], tuple[str, ...]]) -> None:
    while True:
        try:
            await store.refresh_endpoints(first())
        except HeadraceError:
            pass  # no member responds; the known addresses remain valid
        except Exception:
            # The task must outlive every failure: without it this node never connects to members that join later.
            log.exception("Listing the etcd members failed; retrying in %.0f s", LEARN_SECONDS)
        await asyncio.sleep(LEARN_SECONDS)
