"""What can happen to a cluster: each fault begins when its `with` block does, and is over when the block is left.

A fault says whether a majority can still work through it: then clients must get on while it lasts. Several may happen
at once: what one of them has killed already is not there for the next, and each takes back only what it has done.
"""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

from confluent_kafka import KafkaException

from tests.torture.plan import Dice
from tests.torture.stage import PLACES
from tests.torture.wired_cluster import ETCD_MEMBERS, WiredCluster

BROKERS = (1, 2, 3)
Begin = Callable[[WiredCluster, Dice], AbstractContextManager[None]]


class Fault(NamedTuple):
    name: str
    begin: Begin
    is_survived: bool  # clients go on while it lasts
    hold_s: float  # how long it lasts, at least


def _led(cluster: WiredCluster, dice: Dice) -> tuple[int, int]:
    """A broker that leads something, and another one. Any two, where another fault lets nobody tell."""
    place = dice.choice(PLACES)
    leader = _told(lambda: cluster.leader(place.topic, place.partition), dice)
    return leader, dice.choice([one for one in BROKERS if one != leader])


def _told(ask: Callable[[], int], dice: Dice) -> int:
    try:
        number = ask()
    except KafkaException:
        number = -1
    return number if number in BROKERS else dice.choice(BROKERS)


@contextmanager
def _cut(cluster: WiredCluster, pairs: list[tuple[str, str]]) -> Iterator[None]:
    """Nothing from the first of a pair arrives at the second."""
    for sender, receiver in pairs:
        cluster.wire.cut(sender, receiver)
    yield
    cluster.wire.heal(pairs)


def _both_ways(one: str, others: Iterable[str]) -> list[tuple[str, str]]:
    return [pair for other in others for pair in ((one, other), (other, one))]


@contextmanager
def kill_leader(cluster: WiredCluster, dice: Dice) -> Iterator[None]:
    leader, _ = _led(cluster, dice)
    cluster.kill(f"b{leader}")
    yield
    cluster.start_broker(leader)


@contextmanager
def kill_follower(cluster: WiredCluster, dice: Dice) -> Iterator[None]:
    _, follower = _led(cluster, dice)
    cluster.kill(f"b{follower}")
    yield
    cluster.start_broker(follower)


@contextmanager
def kill_controller(cluster: WiredCluster, dice: Dice) -> Iterator[None]:
    victim = _told(cluster.controller, dice)
    cluster.kill(f"b{victim}")
    yield
    cluster.start_broker(victim)


@contextmanager
def kill_etcd_member(cluster: WiredCluster, dice: Dice) -> Iterator[None]:
    member = dice.choice(ETCD_MEMBERS)
    cluster.kill(member)
    yield
    cluster.start_etcd([member])


@contextmanager
def kill_all_brokers(cluster: WiredCluster, dice: Dice) -> Iterator[None]:
    cluster.kill("b1", "b2", "b3")
    yield
    cluster.start_broker(*dice.sample(BROKERS, 3))


@contextmanager
def kill_everything(cluster: WiredCluster, dice: Dice) -> Iterator[None]:
    cluster.kill("b1", "b2", "b3", *ETCD_MEMBERS)
    yield
    cluster.start_etcd(dice.sample(ETCD_MEMBERS, 3))
    cluster.start_broker(*dice.sample(BROKERS, 3))


@contextmanager
def pause_leader(cluster: WiredCluster, dice: Dice) -> Iterator[None]:
    """Past its session: it does not know that others have taken over."""
    leader, _ = _led(cluster, dice)
    cluster.pause(f"b{leader}")
    yield
    cluster.resume(f"b{leader}")


@contextmanager
def pause_etcd_member(cluster: WiredCluster, dice: Dice) -> Iterator[None]:
    member = dice.choice(ETCD_MEMBERS)
    cluster.pause(member)
    yield
    cluster.resume(member)


def cut_leader_off(cluster: WiredCluster, dice: Dice) -> AbstractContextManager[None]:
    """From the other brokers and from etcd; clients still reach it."""
    leader, _ = _led(cluster, dice)
    others = [*(f"b{one}" for one in BROKERS if one != leader), *ETCD_MEMBERS]
    return _cut(cluster, _both_ways(f"b{leader}", others))


def cut_brokers(cluster: WiredCluster, dice: Dice) -> AbstractContextManager[None]:
    """A leader from another broker, both ways; etcd sees both."""
    leader, other = _led(cluster, dice)
    return _cut(cluster, _both_ways(f"b{leader}", [f"b{other}"]))


def cut_one_way(cluster: WiredCluster, dice: Dice) -> AbstractContextManager[None]:
    leader, other = _led(cluster, dice)
    sender, receiver = dice.sample([f"b{leader}", f"b{other}"], 2)
    return _cut(cluster, [(sender, receiver)])


def cut_from_etcd(cluster: WiredCluster, dice: Dice) -> AbstractContextManager[None]:
    """Both ways, or only what it says, or only what it hears."""
    leader, _ = _led(cluster, dice)
    broker, ways = f"b{leader}", dice.choice(["both", "says", "hears"])
    pairs = _both_ways(broker, ETCD_MEMBERS)
    return _cut(cluster, [pair for pair in pairs if ways == "both" or (pair[0] == broker) == (ways == "says")])


def cut_etcd_in_two(cluster: WiredCluster, dice: Dice) -> AbstractContextManager[None]:
    """One member from the other two."""
    alone = dice.choice(ETCD_MEMBERS)
    return _cut(cluster, _both_ways(alone, [other for other in ETCD_MEMBERS if other != alone]))


@contextmanager
def fill_disk(cluster: WiredCluster, dice: Dice) -> Iterator[None]:
    number = dice.choice(BROKERS)
    cluster.fill_disk(number)
    yield
    cluster.free_disk(number)


@contextmanager
def restart_in_a_loop(cluster: WiredCluster, dice: Dice) -> Iterator[None]:
    """A broker that is killed again before it has recovered, several times."""
    number = dice.choice(BROKERS)
    for _ in range(4):
        cluster.kill(f"b{number}")
        cluster.launch_broker(number)
        time.sleep(dice.random() * 1.0)
    cluster.kill(f"b{number}")
    cluster.start_broker(number)
    yield


@contextmanager
def change_members(cluster: WiredCluster, dice: Dice) -> Iterator[None]:
    """A fourth broker comes, takes over a share of everything, is emptied again, and is forgotten."""
    cluster.start_broker(4)
    cluster.headrace("rebalance", "--yes")
    yield
    cluster.headrace("remove", "4", "--yes")
    cluster.stop("b4")
    cluster.headrace("remove", "4", "--yes")


# In the order in which several of them begin; they are over in the reverse order. First those that need a cluster that
# works, to begin and to be over; last those that leave everything running.
FAULTS = (
    Fault("change members", change_members, is_survived=True, hold_s=0),
    Fault("restart in a loop", restart_in_a_loop, is_survived=True, hold_s=0),
    Fault("kill a leader", kill_leader, is_survived=True, hold_s=1),
    Fault("kill a follower", kill_follower, is_survived=True, hold_s=1),
    Fault("kill the controller", kill_controller, is_survived=True, hold_s=1),
    Fault("kill all brokers", kill_all_brokers, is_survived=False, hold_s=0),
    Fault("kill everything", kill_everything, is_survived=False, hold_s=0),
    Fault("kill an etcd member", kill_etcd_member, is_survived=True, hold_s=1),
    Fault("pause a leader", pause_leader, is_survived=True, hold_s=4),
    Fault("pause an etcd member", pause_etcd_member, is_survived=True, hold_s=3),
    Fault("cut a leader off", cut_leader_off, is_survived=True, hold_s=4),
    Fault("cut brokers", cut_brokers, is_survived=False, hold_s=4),
    Fault("cut one way", cut_one_way, is_survived=False, hold_s=4),
    Fault("cut a broker from etcd", cut_from_etcd, is_survived=True, hold_s=4),
    Fault("cut etcd in two", cut_etcd_in_two, is_survived=True, hold_s=3),
    Fault("fill a disk", fill_disk, is_survived=True, hold_s=3),
)
AT_ONCE_MAX = 3  # of six machines: more at a time is one long outage, in which nothing is decided


def some_faults(dice: Dice) -> list[Fault]:
    """A random subset, a quarter of the time none."""
    if dice.random() < 0.25:
        return []
    chosen = dice.sample(FAULTS, dice.randint(1, AT_ONCE_MAX))
    return sorted(chosen, key=FAULTS.index)
