"""Lines of an upload that name their partition, and lines that are too large, among others."""

import json

from tests.integration.gateway.conftest import make_topic

NDJSON = {"content-type": "application/x-ndjson"}


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
    lines = [json.dumps({"value": value}) for value in ("a", "x" * 2_000_000, "b", "c")]
    answer = rest.post(f"/api/v1/topics/{topic}/messages", content="\n".join(lines), headers=NDJSON)
    assert (answer.status_code, answer.json()["written"], answer.json()["failed"]) == (413, 3, 1)
    found = rest.get(f"/topics/{topic}/partitions/0/messages").json()["messages"]
    assert [one["value"] for one in found] == ["a", "b", "c"]
