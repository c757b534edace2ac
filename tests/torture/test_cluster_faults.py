"""A cluster of real processes on a real network, under every fault there is: no promise is broken, and it heals.

Three brokers and three etcd members, each on a machine of its own (a network namespace with a small disk); producers,
transactions and groups work throughout, and the history of what they were told is judged at the end.
"""

import shutil
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.torture.clients import Loop
from tests.torture.cluster_faults import FAULTS, Fault, some_faults
from tests.torture.netns import permitted
from tests.torture.plan import KILLS, Dice
from tests.torture.stage import (
    GROUP_SETTINGS,
    PLACES,
    Stage,
    acknowledged,
    committed,
    create_topic,
    running,
    wait_for,
)
from tests.torture.wired_cluster import WiredCluster

SECONDS_IN_ALL_MAX = 4 * 3600  # under torture
HEAL_SECONDS_MAX = 30.0
QUIET_S = 2.0  # a round without a fault
SUBSETS_IN_A_TEST_RUN = 4
# Also those of the coordinators: a group or a transaction whose partition is not well is not well either.
TOPICS = (PLACES[0].topic, "__consumer_offsets", "__transaction_state")
SETTINGS = {
    "replica.lag.time.max.ms": "2000",
    "default.replication.factor": "3",
    "min.insync.replicas": "2",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
    "log.segment.bytes": str(1024 * 1024),
    **GROUP_SETTINGS,
}
REST_S = 0.004  # some hundred records a second, so that hours of them fit on a small disk
# What is silent is asked again soon: the time between two faults should be the cluster's.
CLIENT_SETTINGS = {
    "socket.timeout.ms": 3000,
    "transaction.timeout.ms": 6000,  # longer than most faults: transactions live through them, or time out in others
    "request.timeout.ms": 2000,
    "topic.metadata.refresh.interval.ms": 1000,
    "topic.metadata.refresh.fast.interval.ms": 100,
    "socket.connection.setup.timeout.ms": 2000,
}


def goes_on(loops: list[Loop]) -> None:
    wait_for("producers", loops, acknowledged, 60)
    wait_for("transactions", loops, committed, 2)
    assert [failure for loop in loops for failure in loop.failures] == []


def suffer(cluster: WiredCluster, loops: list[Loop], faults: list[Fault], dice: Dice) -> None:
    """These faults at once; then all is well again."""
    began = time.monotonic()
    with ExitStack() as over:
        for fault in faults:
            over.enter_context(fault.begin(cluster, dice))
        time.sleep(max((fault.hold_s for fault in faults), default=QUIET_S))
        if not faults or (len(faults) == 1 and faults[0].is_survived):
            goes_on(loops)
        lasted = time.monotonic() - began
    well = cluster.wait_until_well(TOPICS, HEAL_SECONDS_MAX)
    healed = time.monotonic()
    goes_on(loops)
    names = " + ".join(fault.name for fault in faults) or "nothing"
    print(f"{names}: {lasted:.1f} s, well {well:.1f} s later, clients {time.monotonic() - healed:.1f} s after that")


def schedule(dice: Dice) -> list[list[Fault]]:
    """Random subsets of the faults, as many as there are kills; in a test run each fault alone, and a few subsets."""
    if KILLS:
        return [some_faults(dice) for _ in range(KILLS)]
    rounds = [[fault] for fault in FAULTS] + [some_faults(dice) for _ in range(SUBSETS_IN_A_TEST_RUN)]
    return dice.sample(rounds, len(rounds))


@pytest.mark.slow
@pytest.mark.timeout(SECONDS_IN_ALL_MAX)
@pytest.mark.skipif(shutil.which("etcd") is None, reason="needs etcd (Debian: etcd-server)")
def test_a_cluster_keeps_its_promises_under_every_fault(dice: Dice, tmp_path: Path) -> None:
    if not permitted():
        pytest.skip("needs root, to make network namespaces")
    with WiredCluster(tmp_path, 4, SETTINGS) as cluster:
        create_topic(cluster.bootstrap, 3, min_insync_replicas="2")
        stage = Stage(cluster.bootstrap, dice, CLIENT_SETTINGS, rest_s=REST_S)
        loops = [*stage.senders_and_a_reader(), *stage.coordinated()]
        with running(loops):
            goes_on(loops)
            rounds = schedule(dice)
            for faults in rounds:
                suffer(cluster, loops, faults, dice)
        stage.judge(loops, f"{len(rounds)} rounds of faults")
