"""Lines of an upload that name their partition, and lines that are too large, among others."""

import json
import random

from headrace.client.aio.bulk import LONG_MESSAGES_MIN
from tests.integration.gateway.conftest import make_topic

NDJSON = {"content-type": "application/x-ndjson"}
# For the topic, also when it is compressed: a digit that may be any takes half a byte.
TOO_LARGE = random.Random(1).randbytes(2_000_000).hex()


def test_lines_go_to_the_partition_they_name(rest):
    topic = make_topic(rest, partitions=4)
    lines = [json.dumps({"key": "same", "value": str(number), "partition": number % 4}) for number in range(8)]
    assert rest.post(f"/api/v1/topics/{topic}/messages", content="\n".join(lines), headers=NDJSON).status_code == 200
    answers = [rest.get(f"/topics/{topic}/partitions/{number}/messages").json() for number in range(4)]
    assert [[one["value"] for one in answer["messages"]] for answer in answers] == [
        ["0", "4"],
        ["1", "5"],
        ["2", "6"],
        ["3", "7"],
    ]


def test_a_line_that_is_too_large_fails_and_its_neighbours_are_written_once(rest):
    topic = make_topic(rest)
    lines = [json.dumps({"value": value}) for value in ("a", TOO_LARGE, "b", "c")]
    answer = rest.post(f"/api/v1/topics/{topic}/messages", content="\n".join(lines), headers=NDJSON)
    assert (answer.status_code, answer.json()["written"], answer.json()["failed"]) == (413, 3, 1)
    found = rest.get(f"/topics/{topic}/partitions/0/messages").json()["messages"]
    assert [one["value"] for one in found] == ["a", "b", "c"]


def test_a_long_upload_keeps_its_order_and_tells_of_its_failures(rest):
    """Long enough for a producer of its own, which reports failures only."""
    topic = make_topic(rest)
    values = [f"v{number}" for number in range(2 * LONG_MESSAGES_MIN)]
    lines = [json.dumps({"key": "same", "value": value}) for value in values]
    lines[LONG_MESSAGES_MIN + 2000] = json.dumps({"value": TOO_LARGE})
    lines[LONG_MESSAGES_MIN + 3000] = json.dumps({"key": "same", "value": "h", "headers": {"a": "1"}})
    answer = rest.post(f"/api/v1/topics/{topic}/messages", content="\n".join(lines), headers=NDJSON)
    assert (answer.status_code, answer.json()["written"], answer.json()["failed"]) == (413, len(lines) - 1, 1)
    found = [json.loads(line)["value"] for line in rest.get(f"/api/v1/topics/{topic}/messages").text.splitlines()]
    del values[LONG_MESSAGES_MIN + 2000]
    values[LONG_MESSAGES_MIN + 2999] = "h"
    assert found == values


def test_lines_that_are_objects_only_together_are_refused_one_by_one(rest):
    topic = make_topic(rest)
    for lines in (
        ['{"value": "a"', '"key": "b"}', '{"value": "c"},{"value": "d"}'],
        ['{"value": "a}', '{b"}', '{"value": "c"},{"value": "d"}'],
        [
            '{"value": "a", "headers": [{"name": "n", "value": "1"}',
            '{"name": "m", "value": "2"}]}',
            '{"value": "b"},{"value": "c"}',
        ],
    ):
        answer = rest.post(f"/api/v1/topics/{topic}/messages", content="\n".join(lines), headers=NDJSON)
        assert (answer.status_code, answer.json()["line"], answer.json()["written"]) == (422, 1, 0), lines
