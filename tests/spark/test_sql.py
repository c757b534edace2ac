"""Questions to topics and tables: what a query sees, what a mistake is told, and a server that comes and goes."""

import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import parquet as pq

from headrace.archive.settings import GUARD, SCHEMA, TABLE, change, read_settings, topic_view
from headrace.archive.worker import ArchiveWorker
from headrace.cli.app import run
from headrace.client.sync.client import ClientConfig, Cluster
from headrace.spark.sql import client
from headrace.spark.sql import client as wire
from headrace.spark.sql.server import SqlServer
from tests.spark.kit import SparkKit


@pytest.fixture
def server(kit: SparkKit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqlServer]:
    monkeypatch.setenv(wire.FOLDER_VARIABLE, str(tmp_path / "s"))
    server = SqlServer(kit.session, wire.folder(), idle_s=60)
    thread = threading.Thread(target=server.serve)
    thread.start()
    while not (wire.folder() / "socket").exists():
        time.sleep(0.01)
    yield server
    client.stop()
    thread.join(30)
    assert not thread.is_alive()


def archived(kit: SparkKit, folder: Path, kind: str) -> str:
    """Three orders in the archive, one of them poison, and one that came after."""
    topic = kit.topic(2, name=f"orders-{kind}")
    cluster = Cluster(ClientConfig(bootstrap=kit.bootstrap))
    wanted = {TABLE: f"{kind}:{folder / kind}", SCHEMA: "json:id bigint, amount double", GUARD: "true"}
    change(cluster, topic, wanted)
    kit.produce(topic, [b'{"id":1,"amount":1.5}', b'{"id":2,"amount":2}', b"poison"])
    settings = read_settings(cluster, topic_view(cluster, topic))
    assert settings is not None
    ArchiveWorker(cluster).catch_up(settings)
    kit.produce(topic, [b'{"id":4,"amount":4}', b"poison too"])
    cluster.close()
    return topic


@pytest.mark.parametrize("kind", ["delta", "iceberg"])
def test_a_query_sees_archive_and_topic_and_a_table_beside_them(
    kit: SparkKit, server: SqlServer, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = archived(kit, tmp_path, kind)
    pairs = f"select id, amount, decode_error is null as fits from `{topic}` order by id nulls last"
    rows = client.query(pairs, kit.bootstrap, {}).to_pylist()
    assert [(row["id"], row["amount"]) for row in rows if row["fits"]] == [(1, 1.5), (2, 2.0), (4, 4.0)]
    assert [row["id"] for row in rows if not row["fits"]] == [None, None]

    file = tmp_path / "out.parquet"
    assert run(["sql", f"select id from `{topic}` where id < 4", "--parquet", str(file), "-b", kit.bootstrap]) == 0
    assert sorted(pq.read_table(file)["id"].to_pylist()) == [1, 2]
    joined = f"select count(*) as n from `{topic}` join seen using (id)"
    capsys.readouterr()
    assert run(["sql", joined, "--table", f"seen={file}", "--json", "-b", kit.bootstrap]) == 0
    assert '"n": 2' in capsys.readouterr().out
    table = str(tmp_path / kind)
    assert client.query("select count(*) as n from t", kit.bootstrap, {"t": table}).to_pylist() == [{"n": 3}]


def test_values_are_shown_as_people_read_them(
    kit: SparkKit, server: SqlServer, capsys: pytest.CaptureFixture[str]
) -> None:
    topic = kit.topic()
    kit.produce(topic, [{"value": b"text", "headers": [("h", b"x")]}, {"value": b"\xff"}, {"value": None}])
    query = f"select value, headers from `{topic}` order by offset"
    assert run(["sql", query, "-b", kit.bootstrap]) == 0
    shown = capsys.readouterr().out
    assert "text" in shown
    assert "base64:/w==" in shown
    assert '[{"key": "h", "value": "x"}]' in shown


@pytest.mark.parametrize(
    ("query", "complaint"),
    [
        ("select * from t-wrong-name-sqll", "error"),
        ("select * from `sql-nearly-thera`", "did you mean sql-nearly-there?"),
        ("selec 1", "error"),
        ("select nothere from `sql-nearly-there`", "nothere"),
    ],
)
def test_mistakes_are_told(
    kit: SparkKit, server: SqlServer, query: str, complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    if "sql-nearly-there" not in kit.admin.list_topics(timeout=30).topics:
        kit.topic(name="sql-nearly-there")
    assert run(["sql", query, "-b", kit.bootstrap]) == 1
    assert complaint in capsys.readouterr().err


def test_a_client_that_goes_away_takes_its_query_along(kit: SparkKit, server: SqlServer) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(wire.folder() / "socket"))
        endless = "select count(*) from range(100000000000) a join range(100000) b on a.id % 7 = b.id % 11"
        wire.send_line(connection, {"sql": endless, "bootstrap": kit.bootstrap, "tables": {}})
        tracker = kit.session.sparkContext.statusTracker()
        while not tracker.getActiveJobsIds():
            time.sleep(0.05)
    while tracker.getActiveJobsIds():
        time.sleep(0.05)


def test_a_server_that_nobody_asks_ends(kit: SparkKit, tmp_path: Path) -> None:
    SqlServer(kit.session, tmp_path, idle_s=0).serve()
    assert not (tmp_path / "socket").exists()


def test_no_server_is_no_failure_for_stop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(wire.FOLDER_VARIABLE, str(tmp_path))
    assert client.stop() is False
