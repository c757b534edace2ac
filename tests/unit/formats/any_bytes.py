"""What holds for the decoding of any bytes: each record becomes a row or an error, whatever its neighbors are."""

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import settings
from hypothesis import strategies as st
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema

from headrace.formats.row_decoder import Decoded, RowDecoder

EXAMPLES = settings(max_examples=60, deadline=None)


def check_each_alone(decoder: RowDecoder, values: Sequence[bytes | None]) -> Decoded:
    decoded = decoder.decode(values)
    decoded.rows.validate(full=True)
    rows, errors = decoded.rows.to_pylist(), decoded.errors.to_pylist()
    assert len(rows) == len(errors) == len(values)
    for value, row, error in zip(values, rows, errors, strict=True):
        assert (row is None) == (error is not None or value is None)
        alone = decoder.decode([value])
        assert (repr(alone.rows.to_pylist()), alone.errors.to_pylist()) == (repr([row]), [error])
        if error is not None:
            error.encode()
    schema = pa.schema(list(decoder.type))
    assert to_arrow_schema(from_arrow_schema(schema), timezone="UTC") == schema, "Spark has the same type"
    return decoded


@st.composite
def damaged(draw: st.DrawFn, values: st.SearchStrategy[bytes]) -> bytes:
    value = bytearray(draw(values))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(value)))
        match draw(st.sampled_from(("change", "cut", "add", "double"))):
            case "change" if at < len(value):
                value[at] = draw(st.integers(0, 255))
            case "cut":
                del value[at:]
            case "add":
                value[at:at] = draw(st.binary(min_size=1, max_size=4))
            case "double":
                value += value[at:]
    return bytes(value)


def batches(values: st.SearchStrategy[bytes]) -> st.SearchStrategy[list[bytes | None]]:
    return st.lists(st.one_of(st.none(), values, damaged(values), st.binary(max_size=12)), max_size=8)
