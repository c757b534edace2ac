"""How much is measured, how often, on whom. Pure numbers: runs nothing."""

from dataclasses import dataclass

from bench.brokers import Broker


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """How much of everything. The quick one only shows that everything works: its figures mean nothing."""

    bulk_messages: int = 5_000_000  # some four seconds: long enough that connecting does not count
    requests: int = 50_000
    latency_seconds: int = 15
    java_records: int = 3_000_000
    settle_seconds: float = 5.0  # after a start, before a process counts as idle
    idle_seconds: float = 10.0
    partition_counts: tuple[int, ...] = (1, 100, 10_000)
    partition_messages: int = 2_000_000
    connection_counts: tuple[int, ...] = (1, 100, 1_000)
    connection_requests: int = 30_000
    log_mib: tuple[int, ...] = (64, 512, 4_096)
    log_messages: int = 500_000
    local_brokers: int = 200
    local_clusters: int = 10
    http_seconds: int = 10
    http_pairs: int = 15  # measurements of a Kafka client without and with load
    http_lines: int = 1_000_000
    http_listeners: int = 500
    grpc_messages: int = 2_000_000
    groups: int = 1_000
    group_seconds: int = 10
    commit_count: int = 200_000
    commit_warm_up: int = 100_000  # a JVM that has compiled its commits answers three times as many
    rebalance_members: int = 100
    replay_commits: int = 1_000_000
    spark_rows: int = 10_000_000
    cluster_messages: int = 2_000_000  # each is written three times on the same two cores
    steady_seconds: float = 4.0  # under load before something is killed, and after it is back


FULL = Scale()
QUICK = Scale(
    bulk_messages=200_000,
    requests=2_000,
    latency_seconds=2,
    java_records=100_000,
    settle_seconds=0.5,
    idle_seconds=1.0,
    partition_counts=(1, 100),
    partition_messages=50_000,
    connection_counts=(1, 100, 1_000),
    connection_requests=2_000,
    log_mib=(8, 32),
    log_messages=50_000,
    local_brokers=10,
    local_clusters=3,
    http_seconds=2,
    http_pairs=2,
    http_lines=50_000,
    http_listeners=20,
    grpc_messages=50_000,
    groups=50,
    group_seconds=2,
    commit_count=5_000,
    commit_warm_up=1_000,
    rebalance_members=10,
    replay_commits=100_000,
    spark_rows=200_000,
    cluster_messages=100_000,
    steady_seconds=1.0,
)


@dataclass(frozen=True, slots=True)
class Plan:
    kinds: tuple[type[Broker], ...]
    scale: Scale
    repeat: int

    @property
    def repeat_long(self) -> int:
        """Rounds of the cases that take minutes each."""
        return max(1, self.repeat // 2)
