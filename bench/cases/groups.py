"""The coordinators: commits, groups that only live, a rebalance of many, and a start with a million commits."""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager

from bench import topics
from bench.brokers import Broker, Policy
from bench.cases.policies import IN_WORDS
from bench.clients import Figures
from bench.ledger import Case
from bench.plan import Plan
from bench.proc import resident_mib
from bench.runner import Bench, Group

MEMBERS = 3  # of each group
OFFERED_RATE = 10_000
REBALANCE_HEARTBEAT_MS = 200  # members hear of a rebalance by a heartbeat; by the usual 3 s nothing else would be seen
REPLAY_PARTITIONS = 100
REPLAY_GROUPS = 1_000  # each gets the same number of requests, one at least

_ALL = Policy.PAGE_CACHE, Policy.FSYNC


@contextmanager
def _warm_brokers(bench: Bench, policy: Policy) -> Iterator[Sequence[Broker]]:
    """Both brokers under the policy, up, and used to commits."""
    with ExitStack() as stack:
        brokers = []
        for kind in bench.kinds:
            broker = stack.enter_context(bench.fresh(kind, kind.node_policies[policy]))
            bench.progress.doing(f"starting and warming up {kind.kind}")
            broker.start()
            with bench.topic(broker, MEMBERS, policy) as topic:
                bench.clients.members(broker, topic, groups=bench.scale.groups, count=bench.scale.commit_warm_up)
            brokers.append(broker)
        yield brokers


def _commits(bench: Bench) -> None:
    groups, seconds, count = bench.scale.groups, bench.scale.group_seconds, bench.scale.commit_count
    for policy in _ALL:
        who = f"{groups:,} groups of {MEMBERS} members, heartbeats beside them, one offset a commit, {IN_WORDS[policy]}"
        offered = Case(f"commits/offered/{policy.value}", f"{OFFERED_RATE:,} commits/s offered", who)
        most = Case(f"commits/most/{policy.value}", "Commits, one in flight for each member", who)

        def offer(broker: Broker, policy: Policy = policy) -> Figures:
            with bench.topic(broker, MEMBERS, policy) as topic:
                told = bench.clients.members(broker, topic, groups=groups, rate=OFFERED_RATE, seconds=seconds)
            return {**_rate_and_cpu(told), "commit_p50": told["commit_p50"], "commit_p99": told["commit_p99"]}

        def commit(broker: Broker, policy: Policy = policy) -> Figures:
            with bench.topic(broker, MEMBERS, policy) as topic:
                return _rate_and_cpu(bench.clients.members(broker, topic, groups=groups, count=count))

        with _warm_brokers(bench, policy) as brokers:
            bench.alternate(offered, brokers, offer, bench.repeat_long)
            bench.alternate(most, brokers, commit, bench.repeat_long)


def _rate_and_cpu(told: Figures) -> Figures:
    return {"commits": told["committed"] / told["seconds"], "commit_cpu": told["cpu"] / told["committed"] * 1e6}


def _groups(bench: Bench) -> None:
    groups, seconds = bench.scale.groups, bench.scale.group_seconds
    conditions = f"{groups:,} groups of {MEMBERS} members, a heartbeat of each every 3 s, nothing else"
    case = Case("groups/heartbeats", "Groups that only live", conditions)

    def measure(broker: Broker) -> Figures:
        with bench.topic(broker, MEMBERS, Policy.PAGE_CACHE) as topic:
            told = bench.clients.members(broker, topic, groups=groups, seconds=seconds)
        return {
            "stable": told["joined"],
            "heartbeats": told["heartbeats"] / told["seconds"],
            "group_cpu": 100 * told["cpu"] / told["seconds"],
            "rss": resident_mib(broker.pid),
        }

    with _warm_brokers(bench, Policy.PAGE_CACHE) as brokers:
        bench.alternate(case, brokers, measure, bench.repeat_long)


def _rebalance(bench: Bench) -> None:
    members = bench.scale.rebalance_members
    partitions = 2 * members
    with _warm_brokers(bench, Policy.PAGE_CACHE) as brokers:
        for modern, protocol in enumerate(("classic", "consumer")):
            conditions = (
                f"group.protocol={protocol}, {members} members join one group of {partitions} partitions at once, then "
                f"one more; heartbeats every {REBALANCE_HEARTBEAT_MS} ms, group.initial.rebalance.delay.ms=3000"
            )
            case = Case(f"rebalance/{protocol}", "A rebalance of many members", conditions)

            def measure(broker: Broker, modern: int = modern) -> Figures:
                with bench.topic(broker, partitions, Policy.PAGE_CACHE) as topic:
                    told = bench.clients.members(
                        broker,
                        topic,
                        groups=1,
                        members=members,
                        late=1,
                        modern=modern,
                        partitions=partitions,
                        heartbeat_ms=REBALANCE_HEARTBEAT_MS,
                    )
                return {"stable": told["joined"], "stable_again": told["rejoined"]}

            bench.alternate(case, brokers, measure, bench.repeat_long)


def _replay(bench: Bench) -> None:
    count = bench.scale.replay_commits
    conditions = (
        f"{count:,} commits of {REPLAY_GROUPS:,} groups in {REPLAY_PARTITIONS} partitions, {REPLAY_PARTITIONS} in a "
        "request; a clean restart, with a client already asking"
    )
    case = Case("replay/commits", "A start with many commits", conditions)
    keys = {"groups": REPLAY_GROUPS, "partitions": REPLAY_PARTITIONS, "count": count}

    def measure(kind: type[Broker]) -> Figures:
        with bench.fresh(kind, kind.node_policies[Policy.PAGE_CACHE]) as broker:
            broker.start()
            topics.create(broker.bootstrap, ["replayed"], REPLAY_PARTITIONS, {})
            filled = bench.clients.fill_offsets(broker, "replayed", **keys)
            broker.stop()
            client = bench.clients.waiting_for_offsets(broker, "replayed", **keys)
            start = time.monotonic()
            broker.spawn()
            found = bench.clients.found_at(client)
            return {
                "filled": filled["committed"] / filled["seconds"],
                "first_offset": found["first"] - start,
                "all_offsets": found["all"] - start,
                "rss": resident_mib(broker.pid),
            }

    bench.alternate(case, bench.kinds, measure, bench.repeat_long)


def _rounds(cases: int) -> Callable[[Plan], int]:
    return lambda plan: cases * plan.repeat_long * len(plan.kinds)


COMMITS = Group("commits", "Offset commits", _commits, _rounds(2 * len(_ALL)))
GROUPS = Group("groups", "Groups", _groups, _rounds(1))
REBALANCE = Group("rebalance", "Rebalances", _rebalance, _rounds(2))
REPLAY = Group("replay", "Replay of offsets", _replay, _rounds(1))
