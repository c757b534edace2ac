"""LocalEtcd: real etcd members on free ports for the duration of a `with` block, which tests can kill and pause.

    with LocalEtcd(members=3) as etcd:
        store = await EtcdStore.connect(EtcdAddress(endpoints=etcd.endpoints))
        etcd.pause(0)

Needs etcd on the PATH (Debian: etcd-server).
"""

import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from urllib.request import ProxyHandler, build_opener

from headrace.process.sockets import reserve_port
from headrace.testing.local.broker import HOST
from headrace.testing.local.suspend import resume, suspend

START_SECONDS_MAX = 30.0  # three members serve after 0.3 s; a host that needs this long is stuck
# Short, so that a test sees an election within a fraction of a second. The election timeout is ten times the heartbeat,
# as etcd recommends.
HEARTBEAT_MS = 50
ELECTION_MS = 500

_direct = build_opener(ProxyHandler({}))  # ignores proxies that the environment names


class LocalEtcd:
    def __init__(self, members: int = 1, flags: Sequence[str] = (), scheme: str = "http") -> None:
        """Creates the cluster without starting it.

        `flags` go to every member; with the scheme `https` they name the certificates.
        """
        self._flags = tuple(flags)
        self._scheme = scheme
        self._folder = tempfile.mkdtemp(prefix="headrace-etcd-")
        self._reservations = [(reserve_port(0), reserve_port(0)) for _ in range(members)]
        self._processes: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Client endpoints: a host:port for each member."""
        return tuple(f"{HOST}:{client.getsockname()[1]}" for client, _ in self._reservations)

    def start(self) -> None:
        for member in range(len(self._reservations)):
            # Sequentially: a new member contacts those that listen already, and waits seconds for one that does not
            # serve yet. Two members that start at the same time would wait for each other.
            self._spawn(member)
            self._wait_for(member, self._members_url(member), "peerURLs")
        for member in range(len(self._reservations)):
            self._wait_until_ready(member)

    def kill(self, member: int) -> None:
        """Kills a member (SIGKILL), like a crash."""
        process = self._processes.pop(member)
        process.kill()
        process.wait()

    def restart(self, member: int) -> None:
        """Restarts a member on its data, after `kill`. Returns when it serves."""
        self._spawn(member)
        self._wait_until_ready(member)
        # its data has the member list already; with https the request would need a certificate
        if self._scheme == "http":
            self._wait_for(member, f"http://{self.endpoints[member]}/health", '"health":"true"')

    def pause(self, member: int) -> None:
        suspend(self.pid(member))

    def resume(self, member: int) -> None:
        resume(self.pid(member))

    def pid(self, member: int) -> int:
        return self._processes[member].pid

    def output(self, member: int) -> str:
        return self._log(member).read_text(errors="replace")[-16_384:]

    def close(self) -> None:
        for member in list(self._processes):
            self.kill(member)
        for pair in self._reservations:
            for reservation in pair:
                reservation.close()
        shutil.rmtree(self._folder)

    def __enter__(self) -> "LocalEtcd":
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _peer_url(self, member: int) -> str:
        return f"http://{HOST}:{self._reservations[member][1].getsockname()[1]}"

    def _log(self, member: int) -> Path:
        return Path(self._folder, f"{member}.log")

    def _spawn(self, member: int) -> None:
        client_url = f"{self._scheme}://{self.endpoints[member]}"
        everybody = ",".join(f"m{other}={self._peer_url(other)}" for other in range(len(self._reservations)))
        command = [_etcd(), "--name", f"m{member}", "--data-dir", f"{self._folder}/{member}"]
        command += ["--listen-client-urls", client_url, "--advertise-client-urls", client_url]
        command += ["--listen-peer-urls", self._peer_url(member)]
        command += ["--initial-advertise-peer-urls", self._peer_url(member), "--initial-cluster", everybody]
        command += ["--heartbeat-interval", str(HEARTBEAT_MS), "--election-timeout", str(ELECTION_MS), *self._flags]
        with self._log(member).open("ab") as log:
            self._processes[member] = subprocess.Popen(command, stdout=log, stderr=log, process_group=0)

    def _wait_until_ready(self, member: int) -> None:
        """Waits until the member has published its client address, which needs a leader.

        Returns at once if it had published the address before a restart.
        """
        self._wait_for(member, self._members_url(member), f"{self._scheme}://{self.endpoints[member]}")

    def _members_url(self, member: int) -> str:
        """The member list's URL on the peer port, which needs no certificate."""
        return f"{self._peer_url(member)}/members"

    def _wait_for(self, member: int, url: str, text: str) -> None:
        """Waits until the response at this URL contains the text."""
        deadline = time.monotonic() + START_SECONDS_MAX
        while self._processes[member].poll() is None and time.monotonic() < deadline:
            try:
                with _direct.open(url, timeout=1) as answer:
                    if text.encode() in answer.read():
                        return
            except OSError:
                pass
            time.sleep(0.02)
        raise RuntimeError(f"etcd member {member} did not start:\n{self.output(member)}")


def _etcd() -> str:
    found = shutil.which("etcd")
    if found is None:
        raise RuntimeError("etcd is not installed; on Debian: apt-get install etcd-server")
    return found
