"""The reference page has every option, and no option that does not exist."""

import re
from pathlib import Path

from headrace.client.reader.kafka_properties import HONOURED
from headrace.client.reader.read_options import READ_OPTIONS
from headrace.spark.connector.write_options import WRITE_OPTIONS

PAGE = (Path(__file__).parents[4] / "docs/reference/spark.md").read_text()


def test_every_option_is_on_the_page():
    documented = set(re.findall(r"`([A-Za-z.]+)`", PAGE))
    missing = [name for name in (*READ_OPTIONS, *WRITE_OPTIONS) if name not in documented]
    missing += [name for name in HONOURED if f"kafka.{name}" not in documented and name != "sasl.mechanisms"]
    missing = [name for name in missing if f"{name}=PEM" not in PAGE]
    assert missing == []


def test_no_other_option_is():
    rows = re.findall(r"^\| ((?:`[A-Za-z.]+`(?:, )?)+) \|", PAGE, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"`([A-Za-z.]+)`", row)}
    known = {*READ_OPTIONS, *WRITE_OPTIONS, *(f"kafka.{name}" for name in HONOURED)}
    columns = {"key", "value", "topic", "partition", "offset", "timestamp", "timestampType", "headers"}
    assert named - columns <= known
