"""The same pipeline where one machine is not enough: a standalone cluster, Spark Connect, Spark's own runner.

All three are started from the pip package, as processes of their own, and the command line talks to them.
"""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from headrace.process.sockets import reserve_port
from headrace.testing.local.broker import LocalBroker
from tests.spark.kit import SparkKit

WAIT_S = 180
# Each test starts several JVMs, which takes half a minute where nothing else runs.
# With `make interop`: they need nothing from there, but minutes that `make test` has not.
pytestmark = [pytest.mark.interop, pytest.mark.timeout(900)]
ORDERS = [{"id": number, "customer": f"c{number % 3}", "amount": number * 10.0} for number in range(200)]
FILE = """\
pipeline: {name}
sources:
  orders: {{topic: "{topic}", format: json, schema: "id bigint, customer string, amount double"}}
sql: select id, upper(customer) as customer, amount * 2 as twice from orders
sink: {{{sink}}}
dead_letters: {topic}.dead
trigger: available-now
spark: {{spark.driver.host: 127.0.0.1, spark.ui.enabled: "false", spark.sql.shuffle.partitions: "2"}}
"""


def answers(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def spark_home() -> Path:
    import pyspark

    return Path(pyspark.__file__).parent


def environment(**more: str) -> dict[str, str]:
    """Spark's launcher takes the first python3 it finds, which may be one without headrace."""
    own = {"SPARK_HOME": str(spark_home()), "PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("SPARK_", "PYSPARK_"))}
    return inherited | own | more


@contextmanager
def process(words: list[str], log: Path, port: int) -> Iterator[None]:
    """A server that is there as soon as its port answers, and gone afterwards with all that it has started."""
    with log.open("wb") as output:
        child = subprocess.Popen(words, env=environment(), stdout=output, stderr=output, start_new_session=True)
    try:
        deadline = time.monotonic() + WAIT_S
        while not answers(port):
            assert child.poll() is None, log.read_text()[-3000:]
            assert time.monotonic() < deadline, log.read_text()[-3000:]
            time.sleep(0.2)
        yield
    finally:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()


@pytest.fixture
def ports() -> Iterator[tuple[int, int]]:
    """Nobody else gets them, not even for an outgoing connection; Spark's servers bind beside the reservations."""
    with reserve_port(0) as one, reserve_port(0) as other:
        yield one.getsockname()[1], other.getsockname()[1]


@pytest.fixture
def cluster(tmp_path: Path, ports: tuple[int, int]) -> Iterator[str]:
    """A master and a worker; its address."""
    port, worker_port = ports
    launcher, address = str(spark_home() / "bin" / "spark-class"), f"spark://127.0.0.1:{port}"
    master = [
        launcher,
        "org.apache.spark.deploy.master.Master",
        "-h",
        "127.0.0.1",
        "-p",
        str(port),
        "--webui-port",
        "0",
    ]
    worker = [launcher, "org.apache.spark.deploy.worker.Worker", "-h", "127.0.0.1", "-p", str(worker_port)]
    worker += ["--webui-port", "0", "-c", "2", "-m", "1g", "-d", str(tmp_path / "work"), address]
    with process(master, tmp_path / "master.log", port), process(worker, tmp_path / "worker.log", worker_port):
        yield address


@pytest.fixture
def connect(tmp_path: Path, ports: tuple[int, int]) -> Iterator[str]:
    """A Spark Connect server; its address."""
    port, _ = ports
    words = [str(spark_home() / "bin" / "spark-submit"), "--master", "local[2]"]
    words += ["--class", "org.apache.spark.sql.connect.service.SparkConnectServer"]
    for setting in (
        f"spark.connect.grpc.binding.port={port}",
        "spark.ui.enabled=false",
        "spark.sql.shuffle.partitions=2",
    ):
        words += ["--conf", setting]
    with process([*words, "spark-internal"], tmp_path / "connect.log", port):
        yield f"sc://127.0.0.1:{port}"


class Stage:
    def __init__(self, kit: SparkKit, folder: Path) -> None:
        self.kit, self.folder = kit, folder
        self.topic = kit.topic(2)
        self.out, self.dead = kit.topic(name=f"{self.topic}.out"), kit.topic(name=f"{self.topic}.dead")
        kit.produce(self.topic, [*(json.dumps(order).encode() for order in ORDERS), b"{poison"])

    def run(self, sink: str, *words: str) -> None:
        file = self.folder / "pipeline.yaml"
        file.write_text(FILE.format(name=f"p-{self.topic}", topic=self.topic, sink=sink))
        command = [sys.executable, "-m", "headrace.cli.main", "pipeline", "run", str(file), *words]
        where = {"HEADRACE_BOOTSTRAP": self.kit.bootstrap, "HEADRACE_PIPELINES": str(self.folder / "state")}
        done = subprocess.run(
            command, env=environment(**where), capture_output=True, text=True, timeout=2 * WAIT_S, check=False
        )
        assert done.returncode == 0, done.stderr[-4000:]

    def dead_letters(self) -> list[bytes]:
        return self.kit.values(self.dead, kafka__isolation__level="read_committed")


@pytest.fixture
def stage(kit: SparkKit, tmp_path: Path) -> Stage:
    return Stage(kit, tmp_path)


def test_a_standalone_cluster_runs_a_pipeline(stage: Stage, cluster: str) -> None:
    stage.run(f"topic: {stage.out}", "--master", cluster)
    rows = [json.loads(value) for value in stage.kit.values(stage.out, kafka__isolation__level="read_committed")]
    assert sorted(row["id"] for row in rows) == [order["id"] for order in ORDERS]
    assert stage.dead_letters() == [b"{poison"]


def test_a_connect_server_runs_a_pipeline(stage: Stage, connect: str, tmp_path: Path) -> None:
    from deltalake import DeltaTable

    table = tmp_path / "table"
    stage.run(f"delta: {table}", "--remote", connect)
    rows = DeltaTable(str(table)).to_pyarrow_table().to_pylist()
    assert sorted(row["id"] for row in rows) == [order["id"] for order in ORDERS]
    assert stage.dead_letters() == [b"{poison"]


def test_sparks_own_pipelines_read_and_write_topics(kit: SparkKit, tmp_path: Path) -> None:
    with LocalBroker() as broker:
        own = SparkKit(kit.session, broker.bootstrap)  # the template's topics have fixed names
        own.topic(2, name="orders")
        own.topic(name="totals")
        own.produce("orders", [json.dumps(order).encode() for order in ORDERS])
        subprocess.run(
            [sys.executable, "-m", "headrace.cli.main", "pipeline", "init", "totals", "--template", "sdp"],
            cwd=tmp_path, check=True, capture_output=True,
        )  # fmt: skip
        command = [
            str(spark_home() / "bin" / "spark-pipelines"),
            "run",
            "--conf",
            "spark.sql.catalogImplementation=hive",
        ]
        done = subprocess.run(
            [*command, "--conf", "spark.ui.enabled=false", "--conf", "spark.sql.shuffle.partitions=2"],
            cwd=tmp_path / "totals", env=environment(HEADRACE_BOOTSTRAP=broker.bootstrap),
            capture_output=True, text=True, timeout=2 * WAIT_S, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
        rows = [json.loads(value) for value in own.values("totals", kafka__isolation__level="read_committed")]
        wanted = [order for order in ORDERS if order["amount"] >= 1000]
        assert sorted(row["id"] for row in rows) == [order["id"] for order in wanted]
        totals = kit.session.read.parquet(str(tmp_path / "totals" / "spark-warehouse" / "totals"))
        assert sum(row.total for row in totals.collect()) == sum(order["amount"] for order in ORDERS)
