"""The records of the transaction log: Kafka's bytes, read back as they were written."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.transaction.log_records import decode_key, decode_value, encode, encode_key
from headrace.core.transaction.metadata import TransactionMetadata, TransactionState
from headrace.model.errors import CorruptLog
from headrace.model.ids import TopicPartition

INT16, INT32, INT64 = (st.integers(-1, 2**bits - 1) for bits in (15, 31, 63))
ONGOING = TransactionMetadata(
    transactional_id="tx",
    producer_id=7,
    epoch=2,
    timeout_ms=60_000,
    state=TransactionState.ONGOING,
    partitions=frozenset({TopicPartition("t", 1), TopicPartition("t", 0)}),
    started_ms=3,
    updated_ms=4,
    client_version=2,
)
# Version 1, as Apache Kafka 4.3 writes it.
ONGOING_BYTES = bytes.fromhex(
    "0001 0000000000000007 0002 0000ea60 01"
    "02 0274 03 00000000 00000001 00"
    "0000000000000004 0000000000000003"
    "01 02 02 0002"
)


@st.composite
def transactions(draw: st.DrawFn) -> TransactionMetadata:
    state = draw(st.sampled_from(TransactionState))
    places = st.builds(TopicPartition, st.text(min_size=1, max_size=5), st.integers(0, 9))
    return TransactionMetadata(
        transactional_id=draw(st.text(min_size=1, max_size=8)),
        producer_id=draw(INT64),
        epoch=draw(INT16),
        last_epoch=draw(INT16),
        previous_producer_id=draw(INT64),
        next_producer_id=draw(INT64),
        timeout_ms=draw(INT32),
        state=state,
        partitions=frozenset() if state is TransactionState.EMPTY else draw(st.frozensets(places, max_size=4)),
        started_ms=draw(INT64),
        updated_ms=draw(INT64),
        client_version=draw(st.integers(0, 2)),
    )


def test_the_bytes_are_kafkas() -> None:
    key, value = encode(ONGOING)
    assert key == b"\x00\x00\x00\x02tx"
    assert value == ONGOING_BYTES


@given(transactions())
def test_what_was_written_is_read_back(transaction: TransactionMetadata) -> None:
    key, value = encode(transaction)
    assert value is not None
    assert decode_key(key) == transaction.transactional_id
    assert decode_value(transaction.transactional_id, value) == transaction


def test_the_older_version_is_read_too() -> None:
    old = bytes.fromhex(
        "0000 0000000000000007 0002 0000ea60 01"
        "00000001 0001 74 00000002 00000000 00000001"
        "0000000000000004 0000000000000003"
    )
    read = decode_value("tx", old)
    assert read is not None
    assert (read.partitions, read.client_version) == (ONGOING.partitions, 0)


def test_kinds_of_records_from_the_future_are_passed_over() -> None:
    assert decode_key(b"\x00\x09anything") is None
    assert decode_value("tx", b"\x00\x09anything") is None


@pytest.mark.parametrize("length", range(2, len(ONGOING_BYTES)))
def test_half_a_record_is_damage(length: int) -> None:
    with pytest.raises(CorruptLog):
        decode_value("tx", ONGOING_BYTES[:length])


def test_half_a_key_is_damage() -> None:
    with pytest.raises(CorruptLog):
        decode_key(encode_key("tx")[:-1])
