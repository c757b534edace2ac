"""Topics, configs, brokers and transactions over REST."""

from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from confluent_kafka import Producer

from tests.integration.gateway.conftest import make_topic

V1 = "/api/v1"


@pytest.mark.parametrize("prefix", ["", V1])
def test_a_topic_is_made_listed_described_and_deleted(rest, prefix):
    name = f"life-{len(prefix)}"
    made = rest.post(f"{prefix}/topics", json={"name": name, "partitions": 2, "configs": {"retention.ms": 1000}})
    assert (made.status_code, made.json()["partitions"]) == (201, 2)
    assert rest.get(made.headers["location"]).status_code == 200
    assert name in [row["name"] for row in rest.get(f"{prefix}/topics").json()["topics"]]
    described = rest.get(f"{prefix}/topics/{name}").json()
    assert [row["end_offset"] for row in described["partition_list"]] == [0, 0]
    assert rest.delete(f"{prefix}/topics/{name}").json() == {"deleted": name}
    assert rest.get(f"{prefix}/topics/{name}").status_code == 404
    assert rest.delete(f"{prefix}/topics/{name}").status_code == 404


def test_a_topic_made_a_second_time_is_a_conflict(rest, topic):
    again = rest.post("/topics", json={"name": topic})
    assert (again.status_code, again.json()["kafka_error"]) == (409, "TOPIC_ALREADY_EXISTS")


def test_more_replicas_than_brokers_become_as_many_as_there_are_unless_it_matters(rest):
    made = rest.post(f"{V1}/topics", json={"name": "wide", "partitions": 10, "replication_factor": 3}).json()
    assert (made["replication_factor"], made["requested_replication_factor"]) == (1, 3)
    assert "1 broker" in made["warning"]
    strict = rest.post(f"{V1}/topics", json={"name": "wider", "replication_factor": 3, "strict": True})
    assert (strict.status_code, strict.json()["kafka_error"]) == (422, "INVALID_REPLICATION_FACTOR")


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"name": ""},
        {"name": "a/b"},
        {"name": ".."},
        {"name": "t", "partitions": 0},
        {"name": "t", "partitions": "4"},
        {"name": "t", "partitionz": 4},
        {"name": "t", "configs": {"no.such.key": "1"}},
        {"name": "t", "configs": {"retention.ms": "soon"}},
        [],
    ],
)
def test_a_topic_that_makes_no_sense_is_refused(rest, body):
    answer = rest.post("/topics", json=body)
    assert answer.status_code == 422
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["detail"]


def test_topics_come_in_pages(rest):
    for letter in "abc":
        rest.post("/topics", json={"name": f"page-{letter}", "partitions": 1}).raise_for_status()
    first = rest.get(f"{V1}/topics?limit=2&after=page-").json()
    assert ([row["name"] for row in first["topics"]], first["next"]) == (["page-a", "page-b"], "page-b")
    second = rest.get(f"{V1}/topics?limit=1&after={first['next']}").json()
    assert [row["name"] for row in second["topics"]] == ["page-c"]


def test_what_has_not_changed_is_not_sent_again(rest, topic):
    first = rest.get(f"{V1}/topics/{topic}")
    same = rest.get(f"{V1}/topics/{topic}", headers={"if-none-match": first.headers["etag"]})
    assert (same.status_code, same.content) == (304, b"")
    rest.post(f"/topics/{topic}/messages", json={"value": "x"})
    assert rest.get(f"{V1}/topics/{topic}", headers={"if-none-match": first.headers["etag"]}).status_code == 200


def config(rest: httpx.Client, topic: str, name: str) -> dict[str, object]:
    rows = rest.get(f"{V1}/topics/{topic}/configs").json()["configs"]
    return next(row for row in rows if row["name"] == name)


def test_configs_are_set_and_taken_back(rest, topic):
    path = f"{V1}/topics/{topic}/configs"
    assert config(rest, topic, "retention.ms")["source"] != "topic"
    rest.patch(path, json={"configs": {"retention.ms": 5000, "cleanup.policy": "compact"}}).raise_for_status()
    assert (config(rest, topic, "retention.ms")["value"], config(rest, topic, "retention.ms")["source"]) == (
        "5000",
        "topic",
    )
    rest.patch(path, json={"configs": {"retention.ms": None}}).raise_for_status()
    assert config(rest, topic, "retention.ms")["source"] != "topic"
    refused = rest.patch(path, json={"configs": {"retention.ms": "soon"}})
    assert (refused.status_code, refused.json()["kafka_error"]) == (422, "INVALID_CONFIG")


def test_a_change_of_what_has_changed_meanwhile_is_refused(rest, topic):
    path = f"{V1}/topics/{topic}/configs"
    tag = rest.get(path).headers["etag"]
    rest.patch(path, json={"configs": {"retention.ms": 1}}, headers={"if-match": tag}).raise_for_status()
    late = rest.patch(path, json={"configs": {"retention.ms": 2}}, headers={"if-match": tag})
    assert late.status_code == 412


def test_one_of_many_changes_with_one_etag_succeeds(rest, topic):
    path = f"{V1}/topics/{topic}/configs"
    tag = rest.get(path).headers["etag"]

    def change(number: int) -> int:
        body = {"configs": {"retention.ms": 1_000 + number}}
        return rest.patch(path, json=body, headers={"if-match": tag}).status_code

    with ThreadPoolExecutor(10) as threads:
        statuses = sorted(threads.map(change, range(10)))
    assert statuses == [200, *[412] * 9]


def test_conditions_on_etags_follow_the_rfc(rest, topic):
    path, body = f"{V1}/topics/{topic}/configs", {"configs": {"retention.ms": 5}}
    tag = rest.get(path).headers["etag"]
    assert rest.get(path, headers={"if-none-match": "*"}).status_code == 304
    assert rest.get(path, headers={"if-none-match": f'"x", W/{tag}'}).status_code == 304
    assert rest.get(path, headers={"if-match": '"x"'}).status_code == 412
    assert rest.patch(path, json=body, headers={"if-none-match": "*"}).status_code == 412
    assert rest.patch(path, json=body, headers={"if-match": f"W/{tag}"}).status_code == 412
    assert rest.patch(f"{V1}/topics/absent/configs", json=body, headers={"if-match": "*"}).status_code == 404
    assert rest.get(path).headers["etag"] == tag, "nothing was changed"
    changed = rest.patch(path, json=body, headers={"if-match": "*", "if-none-match": '"x"'})
    assert (changed.status_code, changed.headers["etag"]) == (200, rest.get(path).headers["etag"])


def test_a_topic_is_deleted_only_as_it_was_read(rest, topic):
    path = f"{V1}/topics/{topic}"
    tag = rest.get(path).headers["etag"]
    rest.post(f"{path}/messages", json={"value": "x"}).raise_for_status()
    assert rest.delete(path, headers={"if-match": tag}).status_code == 412
    assert rest.delete(path, headers={"if-match": rest.get(path).headers["etag"]}).status_code == 200


def test_a_topic_grows_and_is_shortened(rest, topic):
    assert rest.post(f"{V1}/topics/{topic}/partitions", json={"partitions": 3}).json()["partitions"] == 3
    assert rest.post(f"/topics/{topic}/messages", json={"value": "x", "partition": 2}).status_code == 200
    assert rest.post(f"{V1}/topics/{topic}/partitions", json={"partitions": 2}).status_code == 422
    for _ in range(3):
        rest.post(f"/topics/{topic}/messages", json={"value": "x", "partition": 0})
    cut = rest.post(f"{V1}/topics/{topic}/delete-records", json={"partitions": [{"partition": 0, "before_offset": 2}]})
    assert cut.json() == {"partitions": [{"partition": 0, "start_offset": 2}]}
    assert rest.get(f"/topics/{topic}/partitions/0/offsets").json()["start_offset"] == 2
    everything = rest.post(f"{V1}/topics/{topic}/delete-records", json={"partitions": [{"partition": 0}]})
    assert everything.json() == {"partitions": [{"partition": 0, "start_offset": 3}]}
    too_far = rest.post(
        f"{V1}/topics/{topic}/delete-records", json={"partitions": [{"partition": 0, "before_offset": 99}]}
    )
    assert (too_far.status_code, too_far.json()["kafka_error"]) == (422, "OFFSET_OUT_OF_RANGE")


def test_the_cluster_and_its_brokers(rest, topic):
    cluster = rest.get(f"{V1}/cluster").json()
    assert (cluster["brokers"], cluster["leaderless_partitions"]) == (1, 0)
    (row,) = rest.get(f"{V1}/brokers").json()["brokers"]
    assert row["leads"] == cluster["partitions"]
    assert rest.get(f"{V1}/brokers/{row['id']}").json() == row
    assert rest.get(f"{V1}/brokers/99").status_code == 404
    names = [one["name"] for one in rest.get(f"{V1}/brokers/{row['id']}/configs").json()["configs"]]
    assert "log.retention.ms" in names
    assert rest.get(f"{V1}/brokers/99/configs").status_code == 404


def test_transactions_are_listed_and_described(broker, rest):
    topic = make_topic(rest)
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "tx-rest"})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(topic, b"x", partition=0)
    producer.flush(30)
    listed = rest.get(f"{V1}/transactions?state=Ongoing").json()["transactions"]
    assert [row["transactional_id"] for row in listed] == ["tx-rest"]
    described = rest.get(f"{V1}/transactions/tx-rest").json()
    assert (described["state"], described["partitions"]) == ("Ongoing", [f"{topic}-0"])
    producer.commit_transaction(30)
    missing = rest.get(f"{V1}/transactions/nobody")
    assert (missing.status_code, missing.json()["kafka_error"]) == (404, "TRANSACTIONAL_ID_NOT_FOUND")


def test_health_is_told_at_three_depths(rest):
    assert rest.get("/health").json() == {"status": "ok"}
    assert rest.get("/ready").json() == {"status": "ok"}
    checks = rest.get(f"{V1}/health").json()["checks"]
    told = {name: check["status"] for name, check in checks.items() if not name.startswith("grpc.")}  # may still start
    loops = {name for name in told if name.endswith(".loop")}  # late, where the machine is busy
    assert {name: status for name, status in told.items() if name not in loops} == {
        "broker": "ok",
        "leaders": "ok",
        "replicas": "ok",
        "broker.disk": "ok",
        "broker.logs": "ok",
        "broker.transactions": "ok",
        "broker.coordinators": "ok",
        "broker.store": "ok",
        "broker.replication": "ok",
    }
    assert loops >= {"gateway.loop", "broker.loop"}
