"""The process of an etcd member, with processes that exist only in memory."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from headrace.app.etcd import member as member_module
from headrace.app.etcd.member import EtcdMember
from headrace.app.etcd.member_config import MemberBootstrap
from headrace.config.settings import ClusterSettings, EtcdSettings, Member, Settings
from headrace.model.errors import InvalidConfig


class Process:
    """Ends when the test says so."""

    pids = itertools.count(100)

    def __init__(self) -> None:
        self.pid = next(self.pids)
        self.returncode: int | None = None
        self._over = asyncio.Event()

    async def wait(self) -> int:
        await self._over.wait()
        assert self.returncode is not None
        return self.returncode

    def end(self, code: int = 1) -> None:
        self.returncode = code
        self._over.set()

    def terminate(self) -> None:
        self.end(-15)


class ScriptedMember(EtcdMember):
    """Each start raises the next failure of the script, or runs if that is None."""

    def __init__(
        self,
        settings: Settings,
        *script: Exception | None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        super().__init__(settings, sleep)
        self._script = list(script)
        self.runs: asyncio.Queue[Process] = asyncio.Queue()

    async def _run(self, command: list[str]) -> Any:
        failure = self._script.pop(0) if self._script else None
        if failure is not None:
            raise failure
        process = Process()
        self.runs.put_nowait(process)
        return process

    async def first_start(self) -> None:
        await self._spawn(MemberBootstrap("node-1"))


def settings(folder: Path) -> Settings:
    members = (Member(node_id=1, api_addr="127.0.0.1:1", rpc_addr="127.0.0.1:2"),)
    cluster = ClusterSettings(rpc_addr="127.0.0.1:2", initial_members=members, bootstrap=True)
    return Settings(node_id=1, data_dir=str(folder), cluster=cluster)


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(member_module, "RESTART_SECONDS_MIN", 0.0)


@pytest.mark.parametrize(
    "failure",
    [
        InvalidConfig("broker-1 is not an address of this host: Temporary failure in name resolution"),
        OSError(11, "Resource temporarily unavailable"),
        RuntimeError("a failure that no code expects"),
    ],
    ids=lambda failure: type(failure).__name__,
)
def test_failed_restart_of_etcd_is_retried(
    tmp_path: Path, failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        member = ScriptedMember(settings(tmp_path), None, failure, failure, None)
        await member.first_start()
        member.supervise()
        (await member.runs.get()).end()
        second = await asyncio.wait_for(member.runs.get(), 10)
        second.end()
        await asyncio.wait_for(member.runs.get(), 10)
        await member.stop()

    asyncio.run(scenario())
    assert [record.message for record in caplog.records if "retrying" in record.message]
    ended = [record for record in caplog.records if record.message.startswith("etcd ended")]
    assert len(ended) == 2, "a failed start is not reported as the end of a process"


def test_unresolvable_name_does_not_end_the_watch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    resolve = member_module._number_of
    failures = iter([False, False, True, True, False, False])

    async def flaky(host: str) -> str:
        if next(failures, False):
            raise InvalidConfig(f"{host} is not an address of this host: Name or service not known")
        return await resolve(host)

    monkeypatch.setattr(member_module, "_number_of", flaky)

    async def scenario() -> None:
        member = ScriptedMember(settings(tmp_path))
        await member.first_start()
        member.supervise()
        (await member.runs.get()).end()
        await asyncio.wait_for(member.runs.get(), 10)
        await member.stop()

    asyncio.run(scenario())


def test_pauses_double_while_starts_fail(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also when the process that ended before had run for long."""
    pauses: list[float] = []

    async def note_pause(seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(member_module, "RESTART_SECONDS_MIN", 0.2)
    monkeypatch.setattr(member_module, "LIVED_SECONDS", -1.0)

    async def scenario() -> None:
        member = ScriptedMember(settings(tmp_path), None, *[InvalidConfig("no address")] * 7, None, sleep=note_pause)
        await member.first_start()
        member.supervise()
        (await member.runs.get()).end()
        await asyncio.wait_for(member.runs.get(), 10)
        await member.stop()

    asyncio.run(scenario())
    assert pauses == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 10.0, 10.0]


@pytest.mark.parametrize(("written", "shown"), [(b"removed\n", "removed"), (b"", "it printed nothing")])
def test_error_of_a_run_shows_only_its_own_lines(tmp_path: Path, written: bytes, shown: str) -> None:
    member = EtcdMember(settings(tmp_path))
    path = Path(member._log_path())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"a line of an earlier run\n")
    with member._open_log() as log:
        log.write(written)
    assert member._tail_of_log() == shown


@pytest.mark.parametrize(("cap_ms", "lines"), [(1000, 1), (2999, 1), (3000, 0), (50_000, 0)])
def test_capped_election_timeout_is_logged_once_with_its_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, cap_ms: int, lines: int
) -> None:
    async def installed(program: str) -> None:
        pass

    async def found(*_: object) -> MemberBootstrap:
        return MemberBootstrap("node-1")

    monkeypatch.setattr(member_module, "check_program", installed)
    monkeypatch.setattr(member_module, "beginning", found)
    caplog.set_level(logging.INFO)
    plain = settings(tmp_path)
    slow = replace(
        plain,
        cluster=replace(
            plain.cluster, heartbeat_interval_ms=1000, election_timeout_min_ms=3000, election_timeout_max_ms=6000
        ),
        etcd=EtcdSettings(election_timeout_cap_ms=cap_ms),
    )

    async def scenario() -> None:
        member = ScriptedMember(slow)
        await member.start()
        member.supervise()
        (await member.runs.get()).end()
        await asyncio.wait_for(member.runs.get(), 10)
        await member.stop()

    asyncio.run(scenario())
    logged = [message for message in caplog.messages if "etcd.election_timeout_cap_ms" in message]
    assert len(logged) == lines
    assert all(f"{cap_ms} ms" in message and "3000 ms" in message for message in logged)
