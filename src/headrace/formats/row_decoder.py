"""Decodes record values to rows, for pipelines and archives. Every value becomes a row or an error, independently of
the other values of the batch.

A reader converts bytes to a dictionary or raises `DoesNotDecode`. The columns convert the dictionaries of a batch
to Arrow arrays.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from headrace.formats.arrow_columns import Struct
from headrace.formats.errors import DoesNotDecode, Misfits

Read = Callable[[bytes], Any]


class Decoded(NamedTuple):
    rows: pa.StructArray  # null for errors and for null values
    errors: pa.Array  # messages, null where there is no error


class RowDecoder:
    def __init__(self, read: Read, columns: Struct, *, null_values: str | None = None) -> None:
        """`null_values` is the error of a record without a value; None if such a record is a row of nulls."""
        self._read, self._columns, self._null_values = read, columns, null_values

    @property
    def type(self) -> pa.StructType:
        return self._columns.type

    def reading(self, wrap: Callable[[Read], Read]) -> "RowDecoder":
        """Returns a decoder with the same columns and a wrapped reader."""
        return RowDecoder(wrap(self._read), self._columns, null_values=self._null_values)

    def decode(self, values: Sequence[bytes | None]) -> Decoded:
        misfits = Misfits()
        documents = self._documents(values, misfits)
        rows = self._columns.build(documents, range(len(documents)), "", misfits)
        if not misfits:
            return Decoded(rows, pa.nulls(len(documents), pa.string()))
        if any(documents[row] is not None for row in misfits):
            rows = self._without(misfits, rows)
        return Decoded(rows, pa.array(map(misfits.get, range(len(documents))), pa.string()))

    def _documents(self, values: Sequence[bytes | None], misfits: Misfits) -> list[Any]:
        read, documents = self._read, []
        for row, value in enumerate(values):
            document = None
            if value is not None:
                try:
                    document = read(value)
                except DoesNotDecode as why:
                    misfits.add(row, "", str(why))
            elif self._null_values is not None:
                misfits.add(row, "", self._null_values)
            documents.append(document)
        return documents

    def _without(self, misfits: Misfits, rows: pa.StructArray) -> pa.StructArray:
        """Removes the values of rows with an error, including those that match their columns."""
        gone = [row in misfits or not there for row, there in enumerate(rows.is_valid().to_pylist())]
        children = [rows.field(at) for at in range(rows.type.num_fields)]
        if not children:
            return pa.array([None if one else {} for one in gone], rows.type)
        return pa.StructArray.from_arrays(children, type=rows.type, mask=pa.array(gone, pa.bool_()))
