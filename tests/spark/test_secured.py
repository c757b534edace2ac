"""A cluster that wants certificates: what a pipeline's sources say of them holds for all that it does there."""

import json
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from pyspark.sql import SparkSession

from headrace.cli.app import run
from headrace.client.core.config import security_from
from headrace.process.restart_policy import DONE
from headrace.process.sockets import reserve_port
from headrace.spark.pipeline import worker
from headrace.spark.pipeline.progress_reporter import PROGRESS_TOPIC
from headrace.testing import LocalBroker
from tests.integration.test_etcd_access import make_certificates
from tests.spark.kit import SparkKit
from tests.spark.tls_front import HOST, tls_front

FILE = """\
pipeline: {name}
sources:
  orders:
    topic: orders
    format: json
    schema: id bigint
    options: {options}
sql: select id from orders
sink: {{{sink}}}
dead_letters: {name}.dead
trigger: available-now
"""


class Secured(SparkKit):
    """Everything by way of TLS, with a certificate of one's own."""

    def __init__(self, session: SparkSession, bootstrap: str, folder: Path) -> None:
        files = {"ca": "ca.pem", "certificate": "node.pem", "key": "node.key"}
        self.properties = {"security.protocol": "SSL"}
        self.properties |= {f"ssl.{what}.location": str(folder / name) for what, name in files.items()}
        self.options = {f"kafka.{name}": value for name, value in self.properties.items()}
        super().__init__(session, bootstrap, **security_from(self.properties).librdkafka())


@pytest.fixture
def secured(spark: SparkSession, tmp_path: Path) -> Iterator[Secured]:
    make_certificates(tmp_path)
    with reserve_port(0) as reservation:  # the broker tells of it before the front is there
        port = reservation.getsockname()[1]
        told = {"advertised.listeners": f"PLAINTEXT://{HOST}:{port}", "group.initial.rebalance.delay.ms": "0"}
        with LocalBroker(settings=told) as broker, tls_front(port, broker.port, tmp_path):
            kit = Secured(spark, f"{HOST}:{port}", tmp_path)
            yield kit
            kit.close()


def test_a_pipeline_and_its_dead_letters_go_by_tls(
    secured: Secured, tmp_path: Path, capsys: pytest.CaptureFixture[str], own_signals: None
) -> None:
    secured.topic(name="orders")
    secured.topic(name="out")
    secured.produce("orders", [b'{"id": 1}', b"{broken"])
    for name, sink in ((f"t-{uuid4().hex[:8]}", "topic: out"), (f"d-{uuid4().hex[:8]}", f"delta: {tmp_path}/table")):
        secured.topic(name=f"{name}.dead")
        file = tmp_path / f"{name}.yaml"
        file.write_text(FILE.format(name=name, sink=sink, options=json.dumps(secured.options)))
        command = [str(file), "--bootstrap", secured.bootstrap, "--state", str(tmp_path), "--master", "local[2]"]
        assert worker.main(command) == DONE
        assert secured.values(f"{name}.dead", **secured.options) == [b"{broken"]
        told = [json.loads(value) for value in secured.values(PROGRESS_TOPIC, **secured.options)]
        assert name in {one["pipeline"] for one in told}
    assert secured.values("out", **secured.options) == [b'{"id":1}']
    from deltalake import DeltaTable

    assert DeltaTable(str(tmp_path / "table")).to_pyarrow_table().to_pylist() == [{"id": 1}]
    assert run(["pipeline", "retry-dead", str(file), "--bootstrap", secured.bootstrap, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sent"] == 1
    assert secured.values("orders", **secured.options) == [b'{"id": 1}', b"{broken", b"{broken"]
