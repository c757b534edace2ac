"""Machines on one wire: network namespaces behind a bridge, between which packets can be lost, one way or both.

    with Wire(["b1", "b2", "e1"]) as wire:
        wire.popen("b1", [...])           # a process on that machine
        wire.cut("b1", "b2")              # nothing from b1 arrives at b2 any more
        wire.heal()

A cut is silent, as a pulled cable is: the sender is told to use a hardware address that nobody has. Nobody gets an
error, connections that exist stay, packets are lost. Each machine may have a small disk of its own, a tmpfs that
nobody else sees. Needs root; `permitted()` tells. The namespaces go with the processes in them, so that a killed test
leaves at most the bridge.
"""

import os
import subprocess
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import cache
from random import SystemRandom
from types import TracebackType
from typing import IO, Any

SECONDS_MAX = 10.0
# A locally administered address that no interface of ours has.
NOBODY = "02:00:00:de:ad:00"
OURS = 254  # the last number of our own address, and below it those of the machines


@cache
def permitted() -> bool:
    """Whether this process may make namespaces, bridges and pairs of interfaces."""
    try:
        with Wire(["probe"]):
            return True
    except (OSError, RuntimeError):
        return False


class Wire:
    def __init__(self, names: Sequence[str]) -> None:
        self.names = tuple(names)
        dice = SystemRandom()
        # Somebody else may run the same test on this machine: each run has a network of its own.
        self._prefix = f"10.{dice.randrange(64, 128)}.{dice.randrange(256)}"
        self._bridge = f"hr{dice.randrange(2**32):08x}"
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._cuts: set[tuple[str, str]] = set()
        self._macs: dict[str, str] = {}

    def address(self, name: str) -> str:
        return f"{self._prefix}.{self.names.index(name) + 1}"

    # Faults

    def cut(self, sender: str, receiver: str) -> None:
        """Nothing from the one arrives at the other; the way back is open."""
        self._cuts.add((sender, receiver))
        self._neighbour(sender, receiver, NOBODY)

    def heal(self, pairs: Iterable[tuple[str, str]] | None = None) -> None:
        """These cuts are over, or all of them."""
        healed = self._cuts & set(self._cuts if pairs is None else pairs)
        for sender, receiver in healed:
            self._neighbour(sender, receiver, self._macs[receiver])
        self._cuts -= healed

    def _neighbour(self, sender: str, receiver: str, mac: str) -> None:
        to = ["neigh", "replace", self.address(receiver), "lladdr", mac, "nud", "permanent", "dev", "eth0"]
        self._ip(*to, on=sender)

    # Processes

    def command(self, name: str, words: Sequence[str]) -> list[str]:
        """The same command on that machine; nsenter becomes it, so that its pid is the command's."""
        spaces = f"/proc/{self._holders[name].pid}/ns"
        return ["nsenter", f"--net={spaces}/net", f"--mount={spaces}/mnt", "--", *words]

    def popen(self, name: str, words: Sequence[str], output: IO[bytes]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(self.command(name, words), stdout=output, stderr=output, process_group=0)

    # Disks

    def give_disk(self, name: str, folder: str, size_bytes: int) -> None:
        """An empty disk of that size on that machine."""
        self._run(self.command(name, ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", folder]))

    def inside(self, name: str, path: str) -> str:
        """Where we find a path of that machine."""
        return f"/proc/{self._holders[name].pid}/root{path}"

    # Building

    def _build(self) -> None:
        self._ip("link", "add", self._bridge, "type", "bridge", "forward_delay", "0")
        self._ip("addr", "add", f"{self._prefix}.{OURS}/24", "dev", self._bridge)
        self._ip("link", "set", self._bridge, "up")
        for number, name in enumerate(self.names):
            self._holders[name] = _new_namespace()
            self._plug_in(number, name)
        for sender in self.names:
            for receiver in self.names:
                if sender != receiver:
                    self._neighbour(sender, receiver, self._macs[receiver])

    def _plug_in(self, number: int, name: str) -> None:
        here, pid = f"{self._bridge}.{number}", str(self._holders[name].pid)
        self._macs[name] = f"02:00:00:00:00:{number + 1:02x}"
        far_end = ["name", "eth0", "address", self._macs[name], "netns", pid]
        self._ip("link", "add", here, "type", "veth", "peer", *far_end)
        self._ip("link", "set", here, "master", self._bridge, "up")
        self._ip("addr", "add", f"{self.address(name)}/24", "dev", "eth0", on=name)
        self._ip("link", "set", "lo", "up", on=name)
        self._ip("link", "set", "eth0", "up", on=name)

    def _ip(self, *words: str, on: str | None = None) -> None:
        command = ["ip", *words]
        self._run(self.command(on, command) if on else command)

    @staticmethod
    def _run(command: Sequence[str]) -> None:
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip()}")

    def close(self) -> None:
        for holder in self._holders.values():
            holder.kill()
            holder.communicate()
        # The interfaces on our side go with their namespaces, but not at once; a bridge that is gone keeps none.
        for number in range(len(self._holders)):
            with suppress(RuntimeError):
                self._ip("link", "del", f"{self._bridge}.{number}")
        with suppress(RuntimeError):
            self._ip("link", "del", self._bridge)

    def __enter__(self) -> "Wire":
        try:
            self._build()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _new_namespace() -> "subprocess.Popen[Any]":
    """A process whose network and mounts are its own. It ends when our end of its standard input does."""
    holder = subprocess.Popen(["unshare", "--net", "--mount", "cat"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    deadline = time.monotonic() + SECONDS_MAX
    ours = os.readlink("/proc/self/ns/net")
    while holder.poll() is None and time.monotonic() < deadline:
        with suppress(OSError):
            if os.readlink(f"/proc/{holder.pid}/ns/net") != ours:
                return holder
        time.sleep(0.001)
    holder.kill()
    holder.communicate()
    raise RuntimeError("no new network namespace: this needs root")
