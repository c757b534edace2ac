"""The broker's metrics: names, meanings, labels, buckets.

The numbers of partitions, groups and topics are unbounded, so series with such labels are limited: see
`PARTITIONS_SHOWN_MAX` and `GROUP_ROWS_SHOWN_MAX`.
"""

from headrace.telemetry.metrics import Kind, Metric

# Three series each: 3,000 series are about 250 KiB and 10 ms per scrape, and acceptable for one Prometheus with a
# thousand nodes. A broker with more partitions exports the largest; the sums include all.
PARTITIONS_SHOWN_MAX = 1_000
# A row is a topic of a group: two series. The rows with the largest lag are exported.
GROUP_ROWS_SHOWN_MAX = 1_000

# A Produce takes a tenth of a millisecond in memory, and some on a disk; clients time out after 30 s.
_LATENCIES = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)
_SYNCS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)

_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM


NODE = Metric(
    "headrace_node_info", _GAUGE, "1, with the node's and the cluster's ids as labels.", ("node_id", "cluster_id")
)

# Requests and connections
REQUESTS = Metric(
    "headrace_request_duration_seconds",
    _HISTOGRAM,
    "Time from a request's arrival to its response, by API. It includes the wait of a Fetch for records.",
    ("api",),
    _LATENCIES,
)
ERRORS = Metric(
    "headrace_request_errors_total",
    _COUNTER,
    "Error codes in responses, by API and error: of whole requests, and of each row, such as a partition.",
    ("api", "error"),
)
BYTES_IN = Metric("headrace_network_received_bytes_total", _COUNTER, "Bytes received from clients and other brokers.")
BYTES_OUT = Metric("headrace_network_sent_bytes_total", _COUNTER, "Bytes sent to clients and other brokers.")
CONNECTIONS = Metric("headrace_connections", _GAUGE, "Open connections.")
CONNECTIONS_ACCEPTED = Metric("headrace_connections_accepted_total", _COUNTER, "Connections that were accepted.")
CONNECTIONS_REFUSED = Metric(
    "headrace_connections_refused_total",
    _COUNTER,
    "Connections that were closed on arrival: beyond max.connections or max.connections.per.ip.",
)
THROTTLES = Metric(
    "headrace_connection_throttles_total",
    _COUNTER,
    "How often the broker paused reading from a connection: no memory for requests was available (memory), or its"
    " client has too many requests in flight or does not read its responses (answers).",
    ("reason",),
)
REQUEST_MEMORY = Metric("headrace_request_memory_bytes", _GAUGE, "Memory of requests that have been received in part.")
PRODUCE_PURGATORY = Metric(
    "headrace_produce_purgatory_requests", _GAUGE, "Produce requests that wait for the disk or for replicas."
)
FETCH_PURGATORY = Metric("headrace_fetch_purgatory_requests", _GAUGE, "Fetch requests that wait for records.")

# Records
RECORDS_IN = Metric("headrace_produced_records_total", _COUNTER, "Records that producers have written.")
BATCHES_IN = Metric("headrace_produced_batches_total", _COUNTER, "Batches that producers have written.")
PRODUCED_BYTES = Metric("headrace_produced_bytes_total", _COUNTER, "Bytes of batches that producers have written.")
FETCHED_BYTES = Metric("headrace_fetched_bytes_total", _COUNTER, "Bytes of batches in responses to consumers.")
REPLICA_BYTES = Metric("headrace_replica_fetched_bytes_total", _COUNTER, "Bytes of batches in responses to followers.")

# Logs and disk
LOG_BYTES = Metric("headrace_log_bytes", _GAUGE, "Bytes of all logs of this broker.")
LOG_SEGMENTS = Metric("headrace_log_segments", _GAUGE, "Segments of all logs of this broker.")
PARTITION_BYTES = Metric("headrace_partition_log_bytes", _GAUGE, "Bytes of a partition's log.", ("topic", "partition"))
PARTITION_START = Metric(
    "headrace_partition_start_offset", _GAUGE, "The log start offset of a partition.", ("topic", "partition")
)
PARTITION_END = Metric(
    "headrace_partition_end_offset",
    _GAUGE,
    "The log end offset of a partition; its rate is records per second.",
    ("topic", "partition"),
)
PARTITIONS_NOT_SHOWN = Metric(
    "headrace_partitions_not_shown",
    _GAUGE,
    "Partitions without series of their own: the smallest ones, beyond the limit.",
)
SYNCS = Metric(
    "headrace_sync_duration_seconds",
    _HISTOGRAM,
    "Duration of log syncs by group commit, until the event loop handled the completion.",
    (),
    _SYNCS,
)
DISK_FREE = Metric("headrace_disk_free_bytes", _GAUGE, "Free bytes of the data directory's file system.")
DISK_RESERVE = Metric(
    "headrace_disk_reserve_bytes", _GAUGE, "Produce requests are rejected while fewer bytes than this are free."
)
STRAY_DIRECTORIES = Metric(
    "headrace_stray_directories",
    _GAUGE,
    "Directories that belong to no replica of this broker (-stray); see operations/stray-directories.md.",
)
STRAY_BYTES = Metric("headrace_stray_bytes", _GAUGE, "Bytes of the stray directories.")

# Replication
PARTITIONS = Metric("headrace_partitions", _GAUGE, "Replicas on this broker.")
LEADERS = Metric("headrace_partitions_led", _GAUGE, "Partitions that this broker leads (Kafka: LeaderCount).")
UNDER_REPLICATED = Metric(
    "headrace_partitions_under_replicated",
    _GAUGE,
    "Partitions led by this broker with replicas that are not in the ISR.",
)
UNDER_MIN_ISR = Metric(
    "headrace_partitions_under_min_isr",
    _GAUGE,
    "Partitions led by this broker that reject acks=all: the ISR is smaller than min.insync.replicas.",
)
OFFLINE_REPLICAS = Metric(
    "headrace_offline_replicas",
    _GAUGE,
    "Replicas that this broker cannot read or write (Kafka: OfflineReplicaCount). They need a restart, or disk space if"
    " it was full at the start.",
)
OFFLINE_PARTITIONS = Metric(
    "headrace_offline_partitions",
    _GAUGE,
    "Partitions without a leader, on the active controller (Kafka: OfflinePartitionsCount); 0 elsewhere.",
)
# Until 0.3: in Kafka, an offline partition is one without a leader.
OFFLINE_REPLICAS_DEPRECATED = Metric(
    "headrace_partitions_offline", _GAUGE, "Deprecated, will be removed in 0.3: use headrace_offline_replicas."
)
OFFLINE_PARTITIONS_DEPRECATED = Metric(
    "headrace_partitions_leaderless", _GAUGE, "Deprecated, will be removed in 0.3: use headrace_offline_partitions."
)
ISR_CHANGES = Metric(
    "headrace_isr_changes_total",
    _COUNTER,
    "Replicas that left the ISR (shrink) or joined it (expand), of partitions led by this broker.",
    ("change",),
)
LEADER_CHANGES = Metric(
    "headrace_leader_changes_total",
    _COUNTER,
    "Partitions that this broker began to lead (gained) or stopped leading (lost).",
    ("change",),
)
THROTTLED_BYTES = Metric(
    "headrace_replication_throttled_bytes_total",
    _COUNTER,
    "Bytes of throttled replication: sent as leader (sent), or fetched as follower (copied).",
    ("direction",),
)
REPLICA_LAG = Metric(
    "headrace_replica_lag_records_max",
    _GAUGE,
    "Lag of the slowest replica of the partitions led by this broker, in records.",
)

# Groups and transactions
GROUPS = Metric("headrace_groups", _GAUGE, "Groups that this broker coordinates, by state.", ("state",))
GROUP_LAG = Metric(
    "headrace_group_lag_records", _GAUGE, "Records that a group has not committed yet, by topic.", ("group", "topic")
)
GROUP_LAG_SECONDS = Metric(
    "headrace_group_lag_seconds",
    _GAUGE,
    "Age of the oldest batch that a group has not committed yet, by topic.",
    ("group", "topic"),
)
GROUP_ROWS_NOT_SHOWN = Metric(
    "headrace_group_lags_not_shown",
    _GAUGE,
    "Topics of groups without series of their own: those with the smallest lags, beyond the limit.",
)
GROUP_LAG_UNKNOWN = Metric(
    "headrace_group_lags_unknown",
    _GAUGE,
    "Partitions of groups whose end offset is unknown, because their leader did not respond; their lag counts as 0.",
)
TRANSACTIONS = Metric(
    "headrace_transactions", _GAUGE, "Transactional ids that this broker coordinates, by state.", ("state",)
)
OLDEST_TRANSACTION = Metric(
    "headrace_transaction_oldest_open_seconds",
    _GAUGE,
    "Age of the oldest open transaction, which delays read_committed consumers.",
)
LOST_MARKER = Metric(
    "headrace_partition_lost_marker_offset",
    _GAUGE,
    "First offset of the oldest open transaction whose end marker may be corrupt, in partitions led here with one.",
    ("topic", "partition"),
)

# Controller
CONTROLLER = Metric(
    "headrace_controller_active",
    _GAUGE,
    "1 on the active controller while it can commit to the metadata store, 0 on the others.",
)
BROKERS = Metric("headrace_cluster_brokers", _GAUGE, "Brokers with a valid session, in this broker's metadata image.")
TOPICS = Metric("headrace_cluster_topics", _GAUGE, "Topics of the cluster.")
CLUSTER_PARTITIONS = Metric("headrace_cluster_partitions", _GAUGE, "Partitions of the cluster.")

# Metadata store
STORE_UP = Metric(
    "headrace_metadata_store_up",
    _GAUGE,
    "Whether the metadata store confirms this broker's session (session) and accepted its last write (write).",
    ("operation",),
)
STORE_ERRORS = Metric(
    "headrace_metadata_store_errors_total",
    _COUNTER,
    "Requests to the metadata store that failed, by operation: session, write, read or watch.",
    ("operation",),
)
SESSION_AGE = Metric(
    "headrace_session_age_seconds",
    _GAUGE,
    "Seconds since the metadata store last confirmed this broker's session (broker.session.timeout.ms).",
)

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
