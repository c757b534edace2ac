"""Metrics of the REST and gRPC processes. Labels are defined paths and methods, never text from clients."""

from headrace.telemetry.metrics import Kind, Metric

_COUNTER, _GAUGE, _HISTOGRAM = Kind.COUNTER, Kind.GAUGE, Kind.HISTOGRAM

# A REST produce waits for its batch and for the broker; a poll waits seconds for records.
_LATENCIES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)

HTTP_REQUESTS = Metric(
    "headrace_http_requests_total",
    _COUNTER,
    "Requests by method, route and status. About 70 routes with the few statuses that each has.",
    ("method", "route", "status"),
)
HTTP_DURATION = Metric(
    "headrace_http_request_duration_seconds",
    _HISTOGRAM,
    "Time from a request's head to the end of its response, by method and route. A stream counts when it ends.",
    ("method", "route"),
    _LATENCIES,
)
HTTP_IN_FLIGHT = Metric("headrace_http_requests_under_way", _GAUGE, "Requests in flight.")
HTTP_STREAMS = Metric("headrace_http_event_streams", _GAUGE, "Open streams of server-sent events.")
HTTP_CONSUMERS = Metric("headrace_http_consumers", _GAUGE, "Group members of REST clients, including streams.")
GRPC_CALLS = Metric(
    "headrace_grpc_calls_total", _COUNTER, "Calls by method and status code; streams when they end.", ("method", "code")
)
GRPC_DURATION = Metric(
    "headrace_grpc_call_duration_seconds",
    _HISTOGRAM,
    "Calls by method; streams when they end.",
    ("method",),
    _LATENCIES,
)
GRPC_IN_FLIGHT = Metric("headrace_grpc_calls_under_way", _GAUGE, "Calls and streams in flight, by method.", ("method",))
UPSTREAM_WAITING = Metric(
    "headrace_upstream_waiting_messages",
    _GAUGE,
    "Messages that the REST server (gateway) or the gRPC server (grpc) is sending and that no broker has"
    " acknowledged yet.",
    ("part",),
)
UP = Metric("headrace_part_up", _GAUGE, "1 if this process of the node responds to the REST server, else 0.", ("part",))

ALL = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
