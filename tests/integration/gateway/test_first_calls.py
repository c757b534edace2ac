"""The calls that headrace was described by before it existed work as they were written, against `headrace start`.

Nothing is replaced in them, neither address nor port: the node runs with all its defaults, on a machine of its own (a
network namespace), where nobody else has these ports. The guides show the same calls; their test runs them anywhere.
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.patience import until
from tests.torture.netns import Wire, permitted

WAIT_S = 60.0
NODE = "node"
# Each as it was written, and what its answer must say.
CALLS: list[tuple[str, dict[str, Any]]] = [
    (
        r"""curl -X POST http://localhost:8080/topics \
  -H "Content-Type: application/json" \
  -d '{"name": "my-topic", "partitions": 4}'""",
        {"name": "my-topic", "partitions": 4},
    ),
    (
        "curl http://localhost:8080/topics",
        {"topics": [{"name": "my-topic", "partitions": 4, "replication_factor": 1, "internal": False}]},
    ),
    (
        r"""curl -X POST http://localhost:8080/topics/my-topic/messages \
  -H "Content-Type: application/json" \
  -d '{"key": "user-1", "value": "Hello World", "partition": 0}'""",
        {"topic": "my-topic", "partition": 0, "offset": 0},
    ),
    (
        'curl "http://localhost:8080/topics/my-topic/partitions/0/messages?offset=0&max_records=10"',
        {"messages": [{"offset": 0, "key": "user-1", "value": "Hello World"}], "next_offset": 1},
    ),
    (
        r"""curl -X POST http://localhost:8080/consumers/my-group/groups \
  -H "Content-Type: application/json" \
  -d '{"topic_name": "my-topic"}'""",
        {"group": "my-group", "offsets": [{"partition": one, "offset": 0} for one in range(4)]},
    ),
    (
        r"""curl -X POST http://localhost:8080/consumers/my-group/offsets \
  -H "Content-Type: application/json" \
  -d '{"topic_name": "my-topic", "partition": 0, "offset": 5}'""",
        {"group": "my-group", "offsets": [{"partition": one, "offset": 0 if one else 5} for one in range(4)]},
    ),
    (
        'curl "http://localhost:8080/consumers/my-group/offsets?topic=my-topic"',
        {"group": "my-group", "offsets": [{"partition": one, "offset": 0 if one else 5} for one in range(4)]},
    ),
    (
        "curl http://localhost:8080/topics/my-topic/partitions/0/offsets",
        {"topic": "my-topic", "partition": 0, "start_offset": 0, "end_offset": 1},
    ),
    ("curl -X DELETE http://localhost:8080/topics/my-topic", {"deleted": "my-topic"}),
    ("curl http://localhost:8080/health", {"status": "ok"}),
    (
        r"""curl -X POST http://localhost:8080/api/v1/topics \
     -H "Content-Type: application/json" \
     -d '{
       "name": "test-topic",
       "partitions": 10,
       "replication_factor": 3
     }'""",
        {"name": "test-topic", "partitions": 10, "requested_replication_factor": 3},
    ),
]


@contextmanager
def started(wire: Wire, folder: Path) -> Iterator[None]:
    """`headrace start`, in an empty folder, with nothing behind it."""
    command = ["env", "-C", str(folder), sys.executable, "-P", "-m", "headrace.cli.main", "start"]
    said = folder / "said"
    with said.open("wb") as output:
        node = wire.popen(NODE, command, output)
    try:
        until(lambda: "REST on" in said.read_text(), said.read_text, WAIT_S)
        yield
    finally:
        node.terminate()
        code = node.wait(WAIT_S)
    assert code == 0, said.read_text()


def test_every_call_works_as_it_was_written(tmp_path: Path) -> None:
    if not permitted():
        pytest.skip("needs root, to make a network namespace")
    with Wire([NODE]) as wire, started(wire, tmp_path):
        for call, expected in CALLS:
            done = subprocess.run(
                wire.command(NODE, ["bash", "-c", call]), capture_output=True, text=True, timeout=WAIT_S
            )
            assert done.returncode == 0, f"{call}\n{done.stderr}"
            assert told(json.loads(done.stdout), expected), f"{call}\n{done.stdout}"


def told(answer: Any, expected: Any) -> bool:
    """Whether the answer says all of this; it may say more."""
    if isinstance(expected, dict):
        return all(key in answer and told(answer[key], value) for key, value in expected.items())
    if isinstance(expected, list):
        return len(answer) == len(expected) and all(map(told, answer, expected))
    return bool(answer == expected)
