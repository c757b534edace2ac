"""The decoder of JSON and CSV values for a list of columns."""

from collections.abc import Sequence

import pyarrow as pa

from headrace.spark.values.columns import Struct
from headrace.spark.values.csv_reading import csv_reader
from headrace.spark.values.json_reading import json_reader
from headrace.spark.values.row_decoder import RowDecoder
from headrace.spark.values.rules import JSON, Rules
from headrace.spark.values.text_leaves import TextColumns


def text_columns(format_: str, fields: Sequence[pa.Field], rules: Rules) -> Struct:
    return TextColumns(rules, has_numbers=format_ == JSON).of(fields)


def text_decoder(format_: str, fields: Sequence[pa.Field], rules: Rules) -> RowDecoder:
    read = json_reader(fields, rules) if format_ == JSON else csv_reader([one.name for one in fields], rules)
    return RowDecoder(read, text_columns(format_, fields, rules), null_values=rules.tombstone_error)
