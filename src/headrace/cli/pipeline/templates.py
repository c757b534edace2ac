"""Templates of `headrace pipeline init`."""

from enum import StrEnum
from pathlib import Path


class Template(StrEnum):
    YAML = "yaml"
    PYTHON = "python"
    SDP = "sdp"  # Spark Declarative Pipelines


YAML = """\
# Sources, query and sink. `headrace pipeline check {file}` reports errors,
# `headrace pipeline run {file}` runs it here, `headrace pipeline start {file}` keeps it running.
pipeline: {name}
sources:
  orders:                      # the table name in the SQL
    topic: orders
    format: json               # json, csv, avro, protobuf, text or raw
    schema: id bigint, customer string, amount double, at timestamp
    watermark: at 10 seconds   # how late a record may be
    reject:                    # rows that become dead-letter records
      the amount is negative: amount < 0
sql: |
  select window.start as minute, customer, sum(amount) as total
  from orders
  group by window(at, '1 minute'), customer
sink:
  topic: {name}                # or delta: /path, iceberg: /path, parquet: /path, console: yes
  key: customer
dead_letters: {name}.dead
trigger: 1 second
"""

PYTHON = """\
from headrace.pipeline.python_api import pipeline, topic


@pipeline(
    name="{name}",
    orders=topic(
        "orders",
        format="json",
        schema="id bigint, customer string, amount double, at timestamp",
        watermark="at 10 seconds",
        reject={{"the amount is negative": "amount < 0"}},
    ),
    sink=topic("{name}", key="customer"),
    dead_letters="{name}.dead",
)
def totals(orders):
    from pyspark.sql import functions as f

    totals = orders.groupBy(f.window("at", "1 minute"), "customer").agg(f.sum("amount").alias("total"))
    return totals.select(f.col("window.start").alias("minute"), "customer", "total")
"""

SDP_SPEC = """\
# Spark reads the available records, updates the tables, and exits. Run it in this directory:
#   {command}
# The setting keeps the catalog between runs; Spark does not read it from this file.
name: {name}
storage: file://{folder}/storage
libraries:
  - glob:
      include: transformations/**
"""

SDP_PYTHON = """\
import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as f

spark: SparkSession  # injected by Spark
CLUSTER = {{"kafka.bootstrap.servers": os.environ.get("HEADRACE_BOOTSTRAP", "localhost:9092")}}
SCHEMA = "id bigint, customer string, amount double, at timestamp"


@dp.table
def orders() -> DataFrame:
    # A streaming table: every run adds the records that were produced since the previous run.
    records = spark.readStream.format("headrace").options(**CLUSTER, subscribe="orders", startingOffsets="earliest")
    decoded = records.load().select(f.from_json(f.col("value").cast("string"), SCHEMA).alias("order"))
    return decoded.select("order.*").where("id is not null")


@dp.materialized_view
def {name}() -> DataFrame:
    return spark.read.table("orders").groupBy("customer").agg(f.sum("amount").alias("total"))


dp.create_sink("large_orders", "headrace", {{**CLUSTER, "topic": "{name}", "deliveryGuarantee": "exactly-once"}})


@dp.append_flow(target="large_orders")
def send_large_orders() -> DataFrame:
    large = spark.readStream.table("orders").where("amount >= 1000")
    key = f.col("customer").cast("binary").alias("key")
    return large.select(key, f.to_json(f.struct("*")).cast("binary").alias("value"))
"""
SDP_COMMAND = "spark-pipelines run --conf spark.sql.catalogImplementation=hive"


def files_of(template: Template, name: str) -> dict[Path, str]:
    match template:
        case Template.YAML:
            file = Path(f"{name}.yaml")
            return {file: YAML.format(name=name, file=file)}
        case Template.PYTHON:
            return {Path(f"{name}.py"): PYTHON.format(name=name)}
        case Template.SDP:
            spec = SDP_SPEC.format(name=name, folder=Path(name).absolute(), command=SDP_COMMAND)
            transformation = Path(name) / "transformations" / f"{name}.py"
            return {Path(name) / "spark-pipeline.yml": spec, transformation: SDP_PYTHON.format(name=name)}


def next_step(template: Template, name: str) -> str:
    if template is Template.SDP:
        return f"`cd {name} && {SDP_COMMAND}` runs it"
    suffix = "yaml" if template is Template.YAML else "py"
    return f"`headrace pipeline check {name}.{suffix}` checks it"
