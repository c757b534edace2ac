"""What is measured, a family a file. A group runs alone or with the others."""

from bench.cases import (
    cluster,
    failover,
    gateway,
    groups,
    grpc,
    java_tools,
    latency,
    local,
    loop_lag,
    scaling,
    slow_disk,
    spark,
    start,
    throughput,
)
from bench.runner import Group

# The groups on the pair of running brokers come first and together: the pair is started once.
GROUPS: tuple[Group, ...] = (
    throughput.PRODUCE,
    throughput.CONSUME,
    throughput.REQUESTS,
    latency.LATENCY,
    java_tools.JAVA,
    throughput.MEMORY,
    start.START,
    loop_lag.LAG,
    slow_disk.SLOW_DISK,
    scaling.PARTITIONS,
    scaling.CONNECTIONS,
    scaling.LOG_SIZE,
    cluster.CLUSTER,
    failover.FAILOVER,
    groups.COMMITS,
    groups.GROUPS,
    groups.REBALANCE,
    groups.REPLAY,
    local.LOCAL,
    spark.SPARK,
    gateway.GATEWAY,
    grpc.GRPC,
)
