"""What clients of REST and gRPC sent, received and had acknowledged, and what must hold of it at every moment.

For each group and partition there are two offsets. Everything before `received` has arrived at some client of the
group; no commit may be beyond it. Everything before `acknowledged` is committed, as a response said; no client that
begins after that response may get it again.
"""

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count

PARTITIONS = 3
TOPIC = "soak"
VIOLATIONS_MAX = 20


def payload(number: int) -> bytes:
    """A JSON value that a parser would not write back as it is, of a length of its own."""
    return b'{"n": %d, "exact": 1.10, "text": "\\u00e9%b"}' % (number, b"x" * (number % 400))


@dataclass
class Group:
    arrived: list[set[int]] = field(default_factory=lambda: [set() for _ in range(PARTITIONS)])
    received: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    acknowledged: list[int] = field(default_factory=lambda: [0] * PARTITIONS)


class GatewayHistory:
    def __init__(self, groups: Sequence[str]) -> None:
        self._lock = threading.Lock()
        self._numbers = count(1)
        self._groups = {name: Group() for name in groups}
        self.placed: dict[int, tuple[int, int | None]] = {}  # partition and offset of each acknowledged number
        self.violations: list[str] = []

    def new_numbers(self, length: int) -> list[int]:
        with self._lock:
            return [next(self._numbers) for _ in range(length)]

    def placed_at(self, numbers: Sequence[int], partition: int, offsets: Sequence[int | None]) -> None:
        with self._lock:
            self.placed |= {number: (partition, at) for number, at in zip(numbers, offsets, strict=True)}

    def violated(self, what: str) -> None:
        with self._lock:
            if len(self.violations) < VIOLATIONS_MAX:
                self.violations.append(what)

    def check_value(self, where: str, value: bytes | str | None) -> None:
        content = value.encode() if isinstance(value, str) else value or b""
        try:
            is_whole = content == payload(json.loads(content)["n"])
        except (ValueError, KeyError):
            is_whole = False
        if not is_whole:
            self.violated(f"{where} is {content[:60]!r}: nobody sent that")

    def arrived(self, group: str, partition: int, offset: int, value: bytes | str | None, begin: Sequence[int]) -> None:
        """A client of the group got a record. `begin` is what `acknowledged` returned before it asked."""
        self.check_value(f"{group}: {partition}@{offset}", value)
        if offset < begin[partition]:
            self.violated(f"{group}: {partition}@{offset} came again after {begin[partition]} was acknowledged")
        known = self._groups[group]
        with self._lock:
            at = known.received[partition]
            if offset >= at:
                known.arrived[partition].add(offset)
            while at in known.arrived[partition]:
                known.arrived[partition].remove(at)
                at += 1
            known.received[partition] = at

    def acknowledged(self, group: str) -> list[int]:
        with self._lock:
            return list(self._groups[group].acknowledged)

    def committed(self, group: str, offsets: Mapping[int, int], *, told: bool) -> None:
        """The group's offsets; `told` if a client was told so in response to its commit."""
        known = self._groups[group]
        for partition, offset in offsets.items():
            with self._lock:
                received = known.received[partition]
                if told:
                    known.acknowledged[partition] = max(known.acknowledged[partition], offset)
            if offset > received:
                self.violated(f"{group}: {partition} is committed up to {offset}, and clients have it up to {received}")

    def received(self, group: str) -> list[int]:
        with self._lock:
            return list(self._groups[group].received)
