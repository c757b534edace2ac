"""grpcurl, a gRPC client in Go that knows nothing but reflection, uses the whole service."""

import json
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from headrace.testing import LocalBroker

pytestmark = pytest.mark.interop

GRPCURL = "github.com/fullstorydev/grpcurl/cmd/grpcurl@v1.9.3"
FOLDER = Path(__file__).resolve().parents[2] / ".cache" / "go"
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def grpcurl() -> str:
    made = FOLDER / "grpcurl"
    if not made.exists():
        go = shutil.which("go")
        if go is None:
            pytest.skip("go is not installed")
        subprocess.run([go, "install", GRPCURL], env={**os.environ, "GOBIN": str(FOLDER)}, check=True)
    return str(made)


@pytest.fixture(scope="module")
def node() -> Iterator[LocalBroker]:
    with LocalBroker(gateway=True) as node, grpc.insecure_channel(node.grpc_address) as channel:
        grpc.channel_ready_future(channel).result(TIMEOUT_S)
        yield node


@pytest.fixture
def call(grpcurl: str, node: LocalBroker) -> Callable[..., Any]:
    def one(method: str, *requests: dict[str, Any]) -> Any:
        text = "".join(json.dumps(request) for request in requests)
        command = [grpcurl, "-plaintext", "-max-time", "60", "-d", "@", node.grpc_address, f"headrace.v1.{method}"]
        done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=TIMEOUT_S)
        assert done.returncode == 0, done.stderr
        answers, rest = [], done.stdout
        while rest.strip():
            answer, end = json.JSONDecoder().raw_decode(rest.lstrip())
            answers.append(answer)
            rest = rest.lstrip()[end:]
        return answers[0] if len(answers) == 1 else answers

    return one


def test_services_are_found_by_reflection(grpcurl, node):
    listed = subprocess.run(
        [grpcurl, "-plaintext", node.grpc_address, "list"], capture_output=True, text=True, check=True
    )
    assert {"headrace.v1.KafkaBroker", "headrace.v1.Admin", "grpc.health.v1.Health"} <= set(listed.stdout.split())


def test_records_go_in_and_come_out(call):
    call("Admin/CreateTopic", {"name": "curl", "partitions": 1})
    produced = call("KafkaBroker/Produce", {"topic": "curl", "records": [{"key": "aw==", "value": "dg=="}]})
    assert produced == {"partitions": [0], "offsets": ["0"]}
    acks = call("KafkaBroker/StreamProduce", *({"topic": "curl", "records": [{"value": "dg=="}]} for _ in range(3)))
    assert [ack["offsets"] for ack in acks] == [["1"], ["2"], ["3"]]
    fetched = call("KafkaBroker/Fetch", {"topic": "curl"})
    assert ([record["value"] for record in fetched["records"]], fetched["next_offset"]) == (["dg=="] * 4, "4")


def test_a_member_joins_syncs_beats_commits_and_leaves(call):
    call("Admin/CreateTopic", {"name": "joined", "partitions": 2})
    joined = call("KafkaBroker/JoinGroup", {"group_id": "curls", "topics": ["joined"]})
    assert joined["members"][0]["topics"] == ["joined"]
    who = {"group_id": "curls", "generation_id": joined["generation_id"], "member_id": joined["member_id"]}
    share = {"member_id": joined["member_id"], "partitions": [{"topic": "joined", "partitions": [0, 1]}]}
    assert call("KafkaBroker/SyncGroup", who | {"assignments": [share]})["partitions"] == share["partitions"]
    call("KafkaBroker/Heartbeat", who)
    call("KafkaBroker/CommitOffset", who | {"topic": "joined", "partition": 1, "offset": 5})
    found = call("KafkaBroker/FetchOffset", {"group_id": "curls", "topic": "joined", "partition": 1})
    assert found == {"offset": "5"}
    call("KafkaBroker/LeaveGroup", {"group_id": "curls", "member_id": joined["member_id"]})


def test_a_refusal_has_details_that_grpcurl_prints(grpcurl, node):
    command = [grpcurl, "-plaintext", "-d", '{"topic": "none"}', node.grpc_address, "headrace.v1.KafkaBroker/Fetch"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode != 0
    for word in ("NotFound", "there is no topic none", "UNKNOWN_TOPIC_OR_PARTITION", '"kafka_code": "3"'):
        assert word in done.stderr
