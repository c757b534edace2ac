"""Two topics joined into a third, as SQL and as Python: the same rows, and state that outlives a run."""

import json
from pathlib import Path

import pytest

from headrace.pipeline.dead_letters import DEAD_TOPIC
from headrace.pipeline.definition import OutputMode
from headrace.pipeline.stored_definition import read_any
from tests.spark.kit import SparkKit
from tests.spark.test_pipelines import committed, run

PAYMENT = """
syntax = "proto3";
message Payment { int64 id = 1; string way = 2; }
"""
AS_PYTHON = """\
from headrace.pipeline.python_api import pipeline, topic


@pipeline(
    orders=topic(
        "{orders}",
        format="json",
        schema="id bigint, amount double",
        reject={{"the amount is negative": "amount < 0"}},
    ),
    payments=topic("{payments}", format="protobuf", schema_file="payment.proto", message="Payment"),
    sink=topic("{out}", key="way"),
    dead_letters="{dead}",
    trigger="available-now",
    stalled_after_triggers=7,
    spark={{"spark.sql.shuffle.partitions": "2"}},
)
def joined(payments, orders):
    from pyspark.sql import functions as f

    paid = orders.join(payments, "id").select("id", f.upper("way").alias("way"), (f.col("amount") * 2).alias("twice"))
    return paid
"""
AS_SQL = """\
pipeline: joined
sources:
  orders:
    topic: "{orders}"
    format: json
    schema: id bigint, amount double
    reject: {{the amount is negative: amount < 0}}
  payments: {{topic: "{payments}", format: protobuf, schema_file: payment.proto, message: Payment}}
sql: select id, upper(way) as way, amount * 2 as twice from orders join payments using (id)
sink: {{topic: "{out}", key: way}}
dead_letters: "{dead}"
trigger: available-now
stalled_after_triggers: 7
"""


def order(number: int) -> bytes:
    return json.dumps({"id": number, "amount": float(number)}).encode()


def payment(number: int) -> bytes:
    """As Protobuf writes it; the number is small."""
    return bytes([0x08, number, 0x12, 4]) + b"cash"


@pytest.mark.parametrize(("suffix", "text"), [("py", AS_PYTHON), ("yaml", AS_SQL)])
def test_two_topics_are_joined_over_runs(kit: SparkKit, tmp_path: Path, suffix: str, text: str) -> None:
    orders, payments = kit.topic(2), kit.topic(2)
    out, dead = kit.topic(), kit.topic()
    (tmp_path / "payment.proto").write_text(PAYMENT)
    file = tmp_path / f"joined.{suffix}"
    file.write_text(text.format(orders=orders, payments=payments, out=out, dead=dead))
    pipeline = read_any(file)
    assert (pipeline.name, pipeline.output_mode, pipeline.stalled_after_triggers) == ("joined", OutputMode.APPEND, 7)
    kit.produce(orders, [order(number) for number in range(1, 41)] + [b"{broken", order(-1)])
    kit.produce(payments, [payment(number) for number in range(1, 21)] + [b"\xff\xff"])
    state = run(kit, pipeline, tmp_path)
    assert len(committed(kit, out, 20)) == 20
    kit.produce(payments, [payment(number) for number in range(21, 51)])  # 41 to 50 are for orders that never come
    run(kit, pipeline, tmp_path)
    rows = committed(kit, out, 40)
    twice = {one["id"]: one["twice"] for one in (json.loads(row.value()) for row in rows)}
    assert twice == {number: 2.0 * number for number in range(1, 41)}
    assert len(rows) == 40, "each pair once"
    assert {row.key() for row in rows} == {b"CASH"}
    letters = committed(kit, dead, 3)
    assert {one.value() for one in letters} == {b"{broken", order(-1), b"\xff\xff"}
    assert {dict(one.headers())[DEAD_TOPIC].decode() for one in letters} == {orders, payments}
    progress = state.read("progress")
    assert (progress["rows_in_total"], progress["rows_out_total"], progress["dead_letters_total"]) == (93, 40, 3)
    assert progress["state_rows"] == 90, "both sides wait for their others"
