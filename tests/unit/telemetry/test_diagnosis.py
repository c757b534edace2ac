"""Each rule of the doctor with figures on both sides of its limit."""

import pytest

from headrace.model.errors import ErrorCode
from headrace.telemetry.diagnosis import EXPECTED_ERRORS, diagnose
from headrace.telemetry.prometheus import Interval, Series, parse

SECONDS = 10.0


def findings(after: str, before: str = "") -> dict[str, tuple[str, str, str]]:
    """What is found of counters that were zero ten seconds ago, unless `before` says otherwise."""
    made = diagnose(Interval(parse(before), parse(after), SECONDS))
    return {one.name: (one.status, one.found, one.advice) for one in made}


def test_the_text_is_read_with_its_escapes():
    found = parse('# HELP x y\nx{a="1\\"2\\\\3\\n",b="c d"} 4.5\nx 1\nnonsense\n')
    assert found == {Series("x", (("a", '1"2\\3\n'), ("b", "c d"))): 4.5, Series("x", ()): 1.0}


def test_a_counter_that_went_back_began_anew():
    interval = Interval(parse("c_total 100"), parse("c_total 20"), 10.0)
    assert interval.rate("c_total") == 2.0


def test_quantiles_are_the_bounds_of_their_buckets():
    text = 'h_bucket{le="0.1"} 98\nh_bucket{le="1.0"} 99\nh_bucket{le="+Inf"} 100\n'
    interval = Interval({}, parse(text), 1.0)
    assert [interval.quantile(q, "h") for q in (0.5, 0.99, 1.0)] == [0.1, 1.0, 1.0]
    assert interval.quantile(0.5, "nothing") == 0.0


def test_a_node_at_rest_has_no_bottleneck():
    (found,) = findings("headrace_produced_records_total 5000\n").values()
    assert found[:2] == ("ok", "none: 500 records/s in, 0 requests/s")


@pytest.mark.parametrize(("seconds", "expected"), [(30, "fewer partitions"), (7, "a faster disk"), (5, "")])
def test_a_disk_that_syncs_all_the_time(seconds, expected):
    found = findings(f"headrace_sync_duration_seconds_sum {seconds}\nheadrace_sync_duration_seconds_count 70\n")
    assert ("disk speed" in found) is bool(expected)
    if expected:
        assert found["disk speed"][2].startswith(expected)
        assert f"{seconds / 10:.1f} syncs are in flight" in found["disk speed"][1]


def test_a_disk_whose_slowest_syncs_are_slow():
    text = 'headrace_sync_duration_seconds_bucket{le="0.01"} 90\nheadrace_sync_duration_seconds_bucket{le="0.1"} 100\n'
    found = findings(text + 'headrace_sync_duration_seconds_bucket{le="+Inf"} 100\n')
    assert "p99 100 ms" in found["disk speed"][1]


def test_a_full_disk_is_a_problem_and_one_that_fills_up_a_warning():
    full = findings("headrace_disk_free_bytes 10\nheadrace_disk_reserve_bytes 64\n")
    assert full["disk space"][0] == "problem"
    filling = findings(
        "headrace_disk_free_bytes 3664\nheadrace_disk_reserve_bytes 64\nheadrace_produced_bytes_total 10\n"
    )
    assert "full in 1.0 hours" in filling["disk space"][1]
    fine = findings("headrace_disk_free_bytes 99999999\nheadrace_disk_reserve_bytes 64\n")
    assert "disk space" not in fine


def test_offline_replicas_are_a_problem():
    offline = findings("headrace_offline_replicas 2\n")
    assert offline["offline replicas"][:2] == ("problem", "2 replicas on this broker cannot be read or written")
    assert "offline replicas" not in findings("headrace_offline_replicas 0\n")


def test_transaction_with_a_lost_marker_is_a_problem_with_its_command():
    found = findings('headrace_partition_lost_marker_offset{topic="orders",partition="3"} 17\n')
    status, what, advice = found["lost marker"]
    assert (status, what) == (
        "problem",
        "orders-3: the end marker of the open transaction at offset 17 may be corrupt",
    )
    assert "headrace transactions abort --topic orders --partition 3 --start 17" in advice
    assert "lost marker" not in findings("headrace_partitions_offline 0\n")


def test_a_full_core_is_blamed_on_small_batches_if_there_are_many():
    core = 'process_cpu_seconds_total{part="broker"} 9\n'
    requests = 'headrace_request_duration_seconds_count{api="Produce"} 50000\n'
    requests += 'headrace_request_duration_seconds_count{api="Fetch"} 10\n'
    found = findings(core + requests)
    assert found["event loop"][0] == "problem"
    assert "most of them Produce" in found["event loop"][1]
    assert "more brokers" in found["event loop"][2]
    small = "headrace_produced_batches_total 50000\nheadrace_produced_records_total 60000\n"
    assert "1.2 records each" in findings(core + requests + small)["event loop"][2]
    assert "batches" in findings(small), "also where the core is not full yet"
    assert "event loop" not in findings('process_cpu_seconds_total{part="broker"} 8\n')


def test_busy_host_is_distinguished_from_blocked_loop():
    late = 'headrace_loop_lag_seconds_bucket{part="broker",le="0.01"} 0\n'
    late += 'headrace_loop_lag_seconds_bucket{part="broker",le="0.1"} 200\n'
    late += 'headrace_loop_lag_seconds_bucket{part="broker",le="+Inf"} 200\n'
    assert "does the host swap" in findings(late)["event loop"][2]
    waiting = 'headrace_process_cpu_wait_seconds_total{part="broker"} 3\n'
    found = findings(late + waiting)
    assert found["host"][0] == "problem"
    assert "event loop" not in found


def test_clients_that_do_not_read_and_requests_that_wait_for_memory():
    answers = 'headrace_connection_throttles_total{reason="answers"} 100\nheadrace_network_sent_bytes_total 5e9\n'
    assert "500 MB/s" in findings(answers)["network"][1]
    assert "memory" in findings('headrace_connection_throttles_total{reason="memory"} 100\n')


def _ends(*ends: int, topic: str = "orders") -> str:
    rows = [f'headrace_partition_end_offset{{topic="{topic}",partition="{n}"}} {end}' for n, end in enumerate(ends)]
    return "\n".join(rows) + "\n"


@pytest.mark.parametrize(
    ("ends", "hot"),
    [
        ((9000, 100, 100, 100), True),
        ((9000, 100), True),
        ((3000, 2500, 2500, 2500), False),
        ((900, 1, 1, 1), False),  # next to nothing
        ((9000,), False),
        ((6000, 5000), False),
    ],
)
def test_a_hot_partition(ends, hot):
    found = findings(_ends(*ends))
    assert ("hot partition" in found) is hot
    if hot:
        assert found["hot partition"][1].startswith("orders-0 takes")


def test_an_internal_topic_is_allowed_to_be_hot():
    assert "hot partition" not in findings(_ends(90000, 1, 1, 1, topic="__consumer_offsets"))


def test_a_slow_consumer_is_a_problem_while_its_lag_grows():
    labels = '{group="billing",topic="orders"}'
    before = f"headrace_group_lag_records{labels} 1000\n"
    growing = f"headrace_group_lag_records{labels} 3000\nheadrace_group_lag_seconds{labels} 40\n"
    status, found, advice = findings(growing, before)["slow consumer"]
    assert status == "problem"
    assert found == "billing is 40 s and 3,000 records behind on orders, growing by 200/s"
    assert "headrace groups describe billing" in advice
    shrinking = growing.replace("3000", "500")
    assert findings(shrinking, before)["slow consumer"][0] == "warning"
    assert "slow consumer" not in findings(growing.replace(" 40", " 20"), before)


def test_replicas_that_are_behind():
    behind = "headrace_partitions_under_replicated 3\nheadrace_replica_lag_records_max 70\n"
    assert findings(behind)["replication"][0] == "warning"
    assert findings(behind + "headrace_partitions_under_min_isr 1\n")["replication"][0] == "problem"


def test_rest_and_grpc_are_one_core_each():
    assert "REST" in findings('process_cpu_seconds_total{part="gateway"} 9\n')
    assert "gRPC" in findings('headrace_upstream_waiting_messages{part="grpc"} 60000\n')


def test_errors_are_reported_by_code():
    text = 'headrace_request_errors_total{api="Fetch",error="OFFSET_OUT_OF_RANGE"} 50\n'
    assert "OFFSET_OUT_OF_RANGE, 5.0 times" in findings(text)["errors"][1]


@pytest.mark.parametrize("error", sorted(EXPECTED_ERRORS))
def test_errors_of_a_working_client_are_no_finding(error):
    assert error in ErrorCode.__members__
    assert "errors" not in findings(f'headrace_request_errors_total{{api="Heartbeat",error="{error}"}} 50\n')


def test_problems_come_first():
    text = 'headrace_upstream_waiting_messages{part="grpc"} 60000\nprocess_cpu_seconds_total{part="broker"} 9\n'
    assert [one.status for one in diagnose(Interval({}, parse(text), SECONDS))] == ["problem", "warning"]


@pytest.mark.parametrize(("operation", "text"), [("session", "not been confirmed for 42 s"), ("write", "was rejected")])
def test_unusable_metadata_store_is_a_problem(operation, text):
    text_up = 'headrace_metadata_store_up{operation="session"} 1\nheadrace_metadata_store_up{operation="write"} 1\n'
    assert "metadata store" not in findings(text_up)
    down = text_up.replace(f'"{operation}"}} 1', f'"{operation}"}} 0') + "headrace_session_age_seconds 42\n"
    status, found, _ = findings(down)["metadata store"]
    assert status == "problem"
    assert text in found


def test_stray_directories_are_reported():
    assert "stray directories" not in findings("headrace_stray_directories 0\n")
    found = findings("headrace_stray_directories 3\nheadrace_stray_bytes 20000000\n")["stray directories"]
    assert found[:2] == ("warning", "3 stray directories contain 20,000,000 bytes")
