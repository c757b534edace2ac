"""Both doors, while the topic changes between two runs of a stream."""

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions, NewTopic

from tests.interop.spark_doors import WAIT_S, TwoStreams, fill, make_topics, new_name, options_for
from tests.patience import until

pytestmark = [pytest.mark.interop, pytest.mark.timeout(600)]


def _numbers(rows: list[dict[str, Any]]) -> list[int]:
    return sorted(int(row["value"]) for row in rows)


def _remake(bootstrap: str, topic: str) -> None:
    """Deleted, and made anew under the same name once the old one is gone."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.delete_topics([topic])[topic].result(WAIT_S)
    until(lambda: topic not in admin.list_topics(timeout=WAIT_S).topics, f"{topic} to be gone", WAIT_S)
    make_topics(bootstrap, NewTopic(topic, 1, 1))


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_partitions_are_added(spark, bootstrap, tmp_path: Path, starting: str):
    """They are read from their beginning, wherever the query itself began."""
    topic = new_name("growing")
    make_topics(bootstrap, NewTopic(topic, 1, 1))
    fill(bootstrap, topic, ({"value": b"%d" % n} for n in range(100)))
    streams = TwoStreams(spark, tmp_path, options_for(bootstrap, topic, {"startingOffsets": starting}))
    first = streams.catch_up()
    assert first["headrace"] == first["kafka"]
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_partitions([NewPartitions(topic, 3)])[topic].result(WAIT_S)
    fill(bootstrap, topic, ({"value": b"%d" % n, "partition": n % 3} for n in range(100, 190)))
    second = streams.catch_up()
    assert second["headrace"] == second["kafka"]
    assert _numbers(second["headrace"]) == list(range(0 if starting == "earliest" else 100, 190))


def _read_and_made_anew(spark, bootstrap, tmp_path: Path) -> tuple[str, TwoStreams]:
    """A topic that is empty again, after both doors have read fifty records of it."""
    topic = new_name("anew")
    make_topics(bootstrap, NewTopic(topic, 1, 1))
    fill(bootstrap, topic, ({"value": b"%d" % n} for n in range(50)))
    scenario = {"startingOffsets": "earliest", "failOnDataLoss": "false"}
    streams = TwoStreams(spark, tmp_path, options_for(bootstrap, topic, scenario))
    streams.catch_up()
    _remake(bootstrap, topic)
    return topic, streams


def test_a_topic_is_deleted_and_made_anew(spark, bootstrap, tmp_path: Path):
    topic, streams = _read_and_made_anew(spark, bootstrap, tmp_path)
    # Both look while it is empty. Without that the connector cannot tell the new records from those that it has read.
    streams.catch_up()
    fill(bootstrap, topic, ({"value": b"%d" % n} for n in range(50, 80)))
    found = streams.catch_up()
    assert found["headrace"] == found["kafka"]
    assert _numbers(found["headrace"]) == list(range(80))


def test_what_the_connector_misses_of_a_topic_made_anew(spark, bootstrap, tmp_path: Path):
    """The one scenario where the doors part: it goes by offsets, we go by the topic's id as well."""
    topic, streams = _read_and_made_anew(spark, bootstrap, tmp_path)
    fill(bootstrap, topic, ({"value": b"%d" % n} for n in range(50, 110)))
    found = streams.catch_up()
    assert _numbers(found["headrace"]) == list(range(110))
    assert _numbers(found["kafka"]) == [*range(50), *range(100, 110)], "from its old position on"
