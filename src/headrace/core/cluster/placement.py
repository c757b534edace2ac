"""Which brokers hold a partition: leaders in turn, replicas on as many racks as there are.

Pure arithmetic on broker ids and racks; knows nothing of topics or of which brokers are busy.
"""

from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest


def rack_or_host(rack: str | None, host: str | None) -> str | None:
    """What fails together with a broker: its rack, and where none is named, the machine that it runs on."""
    return rack if rack is not None or not host else f"host {host}"


def place(
    racks: Mapping[int, str | None], indexes: Sequence[int], replication_factor: int, start: int
) -> list[tuple[int, ...]]:
    """The replicas of each partition index, its first leader in front.

    `racks` maps each broker to its rack; `start` shifts the turn, so that the first partitions of many topics
    do not all meet on the first broker.
    """
    assert 1 <= replication_factor <= len(racks), "the caller has checked that there are enough brokers"
    ring = rack_alternating(racks)
    return [_replicas(ring, racks, start + index, replication_factor) for index in indexes]


def rack_alternating(racks: Mapping[int, str | None]) -> list[int]:
    """All brokers in an order that changes the rack at every step, as long as the racks allow it."""
    brokers_of_rack: dict[str, list[int]] = {}
    for broker in sorted(racks):
        brokers_of_rack.setdefault(_rack(racks, broker), []).append(broker)
    turns = zip_longest(*(brokers_of_rack[rack] for rack in sorted(brokers_of_rack)))
    return [broker for broker in chain.from_iterable(turns) if broker is not None]


def _replicas(
    ring: Sequence[int], racks: Mapping[int, str | None], turn: int, replication_factor: int
) -> tuple[int, ...]:
    """The leader whose turn it is; then the nearest on the ring whose rack has no replica yet, then the rest."""
    brokers = len(ring)
    leader = turn % brokers
    if replication_factor == 1:
        return (ring[leader],)
    # Every full turn looks for followers one place further, or each leader would always have the same ones.
    shift = (turn // brokers) % (brokers - 1)
    others = [ring[(leader + 1 + (shift + step) % (brokers - 1)) % brokers] for step in range(brokers - 1)]
    taken = {_rack(racks, ring[leader])}
    first_of_rack: list[int] = []
    rest: list[int] = []
    for broker in others:
        rack = _rack(racks, broker)
        (rest if rack in taken else first_of_rack).append(broker)
        taken.add(rack)
    return (ring[leader], *(first_of_rack + rest)[: replication_factor - 1])


def _rack(racks: Mapping[int, str | None], broker: int) -> str:
    """A broker that names no rack stands alone on its own: the NUL keeps it apart from every real name."""
    rack = racks[broker]
    return f"\0{broker:012d}" if rack is None else rack
