"""The beginning of a registry's records: whatever its bytes are, it is a message of a schema or an error."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.formats.errors import DoesNotDecode
from headrace.formats.wire_format import HEAD_BYTES, schema_id_of, split_indexes


@given(st.one_of(st.binary(max_size=12), st.binary(max_size=8).map(lambda rest: b"\0" + rest)))
def test_any_bytes_name_a_schema_and_message_or_are_an_error(value: bytes) -> None:
    try:
        schema_id = schema_id_of(value)
        indexes, payload = split_indexes(value[HEAD_BYTES:])
    except DoesNotDecode:
        return
    assert schema_id == int.from_bytes(value[1:HEAD_BYTES], "big")
    assert indexes
    assert value.endswith(payload)


@pytest.mark.parametrize("payload", [b"\1", b"\1rest", b"\x03\x02", b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01"])
def test_negative_count_of_indexes_is_an_error(payload: bytes) -> None:
    with pytest.raises(DoesNotDecode, match="message indexes"):
        split_indexes(payload)
