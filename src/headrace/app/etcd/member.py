"""The etcd member of a node, as a child process: started, supervised, restarted when it ends, stopped last."""

import asyncio
import json
import logging
import os
import re
import shutil
import signal
import socket
from collections.abc import Awaitable, Callable
from typing import IO

from headrace.app.etcd.bootstrap import beginning, was_started
from headrace.app.etcd.member_config import (
    MemberBootstrap,
    addresses,
    client_address,
    command_line,
    requested_election_ms,
    timers_ms,
)
from headrace.config.etcd_address import target_of
from headrace.config.settings import Settings, split_address
from headrace.model.errors import HeadraceError, InvalidConfig, StorageError
from headrace.process.child import kill_when_pipe_closes, stop_child
from headrace.process.sockets import reserve_port

log = logging.getLogger(__name__)

FOLDER = "etcd"
DATA_FOLDER = "data"
LOG_FILE = "etcd.log"
IDENTITY_FILE = "identity.json"
VERSION_MIN = (3, 4)  # the first with learners, which can join without a risk to the quorum
LOG_BYTES_MAX = 16 * 1024 * 1024  # the log is truncated at the next start above this size; only errors are logged
LOG_SHOWN_BYTES, LOG_SHOWN_LINES = 8192, 3  # end of the log that is reported when the member ends
RESTART_SECONDS_MIN, RESTART_SECONDS_MAX = (
    0.2,
    10.0,
)  # a crash is followed by a quick restart; repeated crashes do not fill the disk
LIVED_SECONDS = 60.0  # after this run time the restart pause is reset
# The member transfers its raft leadership, which takes a few heartbeats. If all members stop at once there is no
# target, and etcd would wait for seven seconds. Killing it is as safe as stopping it.
STOP_SECONDS_MAX = 2.0


class EtcdMember:
    def __init__(self, settings: Settings, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        self._settings = settings
        self._sleep = sleep
        self._folder = os.path.join(settings.data_dir, FOLDER)
        self._name = ""
        self._process: asyncio.subprocess.Process | None = None
        self._alive = -1  # write end of a pipe; closing it ends the process
        self._reserved: socket.socket | None = None  # holds the client port if it is any free one
        self._started_at = 0.0
        self._log_begins = 0  # start of this run's lines in the log file
        self._watching: asyncio.Task[None] | None = None
        self.target = ""  # host:port of its client endpoint; changes with each start if the port is any free one

    async def start(self) -> None:
        """Starts the member; returns when the process runs. Whether it serves depends on the other members."""
        await check_program(self._settings.etcd.program)
        known_name = check_identity(self._folder, self._settings)
        begin = await beginning(self._settings, self._data_folder(), known_name)
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        write_identity(self._folder, self._settings, begin.name)
        _warn_if_open_to_strangers(self._settings)
        _log_election_cap(self._settings)
        self._name = begin.name
        await self._spawn(begin)

    async def ended(self) -> None:
        """Waits until the process ends; raises StorageError with the end of its log."""
        assert self._process is not None, "start first"
        code = await self._process.wait()
        raise StorageError(f"etcd ended with code {code} before it served: {self._tail_of_log()}")

    def supervise(self) -> None:
        """Restarts the member whenever it ends, from now on."""
        self._watching = asyncio.create_task(self._watch_over())

    async def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
            await asyncio.wait((self._watching,))
        if self._process is not None and not await stop_child(self._process, STOP_SECONDS_MAX):
            log.info("etcd did not hand over leadership within %.0f s and was killed", STOP_SECONDS_MAX)
        self._let_go()

    async def _watch_over(self) -> None:
        rest_seconds = RESTART_SECONDS_MIN
        while True:
            assert self._process is not None
            code = await self._process.wait()
            if asyncio.get_running_loop().time() - self._started_at > LIVED_SECONDS:
                rest_seconds = RESTART_SECONDS_MIN
            log.error(
                "etcd ended with code %s, starting it again in %.1f s: %s", code, rest_seconds, self._tail_of_log()
            )
            rest_seconds = await self._start_again(rest_seconds)

    async def _start_again(self, rest_seconds: float) -> float:
        """Returns when the process runs, after any number of failed starts; the result is the next pause.

        A start may fail for a temporary reason, such as a failed name lookup. An exception that ended this task would
        leave the member down without a log line.
        """
        while True:
            await self._sleep(rest_seconds)
            rest_seconds = min(2 * rest_seconds, RESTART_SECONDS_MAX)
            try:
                await self._spawn(MemberBootstrap(self._name))
                return rest_seconds
            except (HeadraceError, OSError) as error:
                log.error("Starting etcd failed: %s; retrying in %.1f s", error, rest_seconds)
            except Exception:
                log.exception("Starting etcd failed unexpectedly; retrying in %.1f s", rest_seconds)

    async def _spawn(self, begin: MemberBootstrap) -> None:
        loop = asyncio.get_running_loop()
        client_host, client_port = client_address(self._settings)
        rpc_host, _ = split_address(self._settings.cluster.rpc_addr)
        client_ip = await _number_of(client_host)
        self._let_go()
        where = addresses(
            self._settings,
            rpc_ip=await _number_of(rpc_host),
            client_ip=client_ip,
            client_port=client_port or self._reserve_port(client_ip),
        )
        self._process = await self._run(command_line(self._settings, self._data_folder(), begin, where))
        self._started_at = loop.time()
        self.target = target_of(where.client_url)
        log.info("etcd runs as process %d, peers on %s, brokers on %s", self._process.pid, where.peer_url, self.target)

    async def _run(self, command: list[str]) -> asyncio.subprocess.Process:
        """Starts the process so that it ends with this one, even after SIGKILL.

        An etcd without its broker would hold its directory and ports, and the next start would fail.
        """
        alive_read, self._alive = os.pipe()
        try:
            with self._open_log() as output:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=alive_read,
                    stdout=output,
                    stderr=output,
                    process_group=0,  # Ctrl-C reaches the node only, which stops the member after the broker
                )
            kill_when_pipe_closes(alive_read, process.pid, signal.SIGKILL)
        finally:
            os.close(alive_read)
        return process

    def _reserve_port(self, ip: str) -> int:
        """Reserves a free port for the lifetime of the member."""
        self._reserved = reserve_port(0, ip)
        port: int = self._reserved.getsockname()[1]
        return port

    def _let_go(self) -> None:
        if self._reserved is not None:
            self._reserved.close()
            self._reserved = None
        if self._alive >= 0:
            os.close(self._alive)
            self._alive = -1

    def _data_folder(self) -> str:
        return os.path.join(self._folder, DATA_FOLDER)

    def _open_log(self) -> IO[bytes]:
        path = self._log_path()
        size = os.path.getsize(path) if os.path.exists(path) else 0
        is_full = size > LOG_BYTES_MAX
        self._log_begins = 0 if is_full else size
        return open(path, "wb" if is_full else "ab")

    def _log_path(self) -> str:
        return os.path.join(self._folder, LOG_FILE)

    def _tail_of_log(self) -> str:
        try:
            with open(self._log_path(), "rb") as file:
                file.seek(max(self._log_begins, os.fstat(file.fileno()).st_size - LOG_SHOWN_BYTES))
                lines = file.read().decode(errors="replace").splitlines()
        except OSError as error:
            return f"no log: {error}"
        return "; ".join(_in_short(line) for line in lines[-LOG_SHOWN_LINES:]) or "it printed nothing"


def _in_short(line: str) -> str:
    """Shortens a JSON log line of etcd, which may contain a stack trace, to message and error."""
    try:
        fields = json.loads(line)
        return ": ".join(str(fields[name]) for name in ("msg", "error") if name in fields)
    except (ValueError, TypeError):
        return line.strip()


async def check_program(program: str) -> None:
    """Raises InvalidConfig unless the program is an etcd of a supported version."""
    if shutil.which(program) is None:
        raise InvalidConfig(
            f"{program} is not installed, and the nodes of a cluster need it: apt-get install etcd-server, or set"
            " etcd.program, or name an etcd that runs already (metadata: etcd://host:port). A node alone needs none:"
            " leave cluster.initial_members out"
        )
    process = await asyncio.create_subprocess_exec(
        program, "--version", stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    found = re.search(rb"etcd Version: (\d+)\.(\d+)", said)
    if found is None:
        raise InvalidConfig(f"etcd.program: {program} is not etcd: its --version prints {said[:200]!r}")
    version = int(found[1]), int(found[2])
    if version < VERSION_MIN:
        raise InvalidConfig(
            f"etcd.program: {program} is etcd {version[0]}.{version[1]}; at least {VERSION_MIN[0]}.{VERSION_MIN[1]} is"
            " needed"
        )


def check_identity(folder: str, settings: Settings) -> str:
    """Returns the name of this node's member; empty if the directory is empty.

    Raises StorageError if the directory belongs to another node's member.
    """
    path = os.path.join(folder, IDENTITY_FILE)
    try:
        with open(path, encoding="utf-8") as file:
            identity = json.load(file)
        node_id, rpc_addr, name = identity["node_id"], identity["rpc_addr"], str(identity["name"])
    except FileNotFoundError:
        if was_started(os.path.join(folder, DATA_FOLDER)):
            raise StorageError(f"{folder} holds an etcd that is not this node's; use another storage_path") from None
        return ""
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"cannot read {path}: {error}") from None
    if node_id != settings.node_id:
        raise StorageError(
            f"{folder} is the etcd member of node {node_id}, not of {settings.node_id}; each node has its own"
            " storage_path and node_id"
        )
    if rpc_addr != settings.cluster.rpc_addr:
        raise StorageError(
            f"{folder} is the etcd member at {rpc_addr}, but rpc_addr is {settings.cluster.rpc_addr}; restore it,"
            f" or update etcd first (etcdctl member update) and then change the address in {path}"
        )
    return name


def write_identity(folder: str, settings: Settings, name: str) -> None:
    """Writes the identity file before the member's first start, so that later contents of the directory are its own."""
    path = os.path.join(folder, IDENTITY_FILE)
    identity = {"node_id": settings.node_id, "rpc_addr": settings.cluster.rpc_addr, "name": name}
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(identity, file)
        file.flush()
        os.fsync(file.fileno())
    os.rename(path + ".new", path)


def _warn_if_open_to_strangers(settings: Settings) -> None:
    host, _ = split_address(settings.cluster.rpc_addr)
    if not settings.etcd.cert_file and host not in ("localhost", "::1") and not host.startswith("127."):
        log.warning(
            "etcd on %s accepts every connection: set etcd.ca_file, etcd.cert_file and etcd.key_file, or keep"
            " untrusted clients off that network",
            settings.cluster.rpc_addr,
        )


def _log_election_cap(settings: Settings) -> None:
    requested_ms, (heartbeat_ms, election_ms) = requested_election_ms(settings), timers_ms(settings)
    if election_ms < requested_ms:
        log.info(
            "etcd uses an election timeout of %d ms and heartbeats of %d ms; raft.* requests %d ms, which is above"
            " etcd.election_timeout_cap_ms: raise that limit on a slow network or disk",
            election_ms,
            heartbeat_ms,
            requested_ms,
        )


async def _number_of(host: str) -> str:
    """Resolves the host to an IP address, because etcd binds to addresses only."""
    if not host:
        return "0.0.0.0"  # noqa: S104 - as the settings say: every interface
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise InvalidConfig(f"{host} is not an address of this host: {error.strerror}") from None
    return str(found[0][4][0])
