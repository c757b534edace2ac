"""Metrics that every process of a node has; the label `part` is its role: broker, gateway or grpc."""

from headrace.telemetry.metrics import Kind, Metric

_PART = ("part",)

# From negligible to longer than a session timeout.
LOOP_LAG = Metric(
    "headrace_loop_lag_seconds",
    Kind.HISTOGRAM,
    "Delay of the event loop's timers, sampled twenty times a second.",
    _PART,
    (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0),
)
BUILD = Metric("headrace_build_info", Kind.GAUGE, "1, with the versions as labels.", ("part", "version", "python"))
CPU = Metric("process_cpu_seconds_total", Kind.COUNTER, "User and system CPU time.", _PART)
RESIDENT = Metric("process_resident_memory_bytes", Kind.GAUGE, "Resident memory.", _PART)
VIRTUAL = Metric("process_virtual_memory_bytes", Kind.GAUGE, "Virtual memory.", _PART)
STARTED = Metric("process_start_time_seconds", Kind.GAUGE, "Start of the process, in seconds since 1970.", _PART)
OPEN_FDS = Metric("process_open_fds", Kind.GAUGE, "Open file descriptors.", _PART)
MAX_FDS = Metric("process_max_fds", Kind.GAUGE, "The limit on open file descriptors.", _PART)
THREADS = Metric("headrace_process_threads", Kind.GAUGE, "Threads of the process.", _PART)
CPU_WAIT = Metric(
    "headrace_process_cpu_wait_seconds_total",
    Kind.COUNTER,
    "Time during which the event loop's thread was runnable but had no core: the host is overloaded.",
    _PART,
)
GC = Metric("headrace_process_gc_collections_total", Kind.COUNTER, "Garbage collections.", ("part", "generation"))

ALL = (LOOP_LAG, BUILD, CPU, RESIDENT, VIRTUAL, STARTED, OPEN_FDS, MAX_FDS, THREADS, CPU_WAIT, GC)
