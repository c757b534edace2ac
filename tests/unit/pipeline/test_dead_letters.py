"""Dead letters as values: what comes back is what went in, and nothing is meant twice."""

import json

import pytest

from headrace.model.errors import InvalidConfig
from headrace.model.ids import TopicPartition
from headrace.pipeline.dead_letters import (
    DEAD_HEADERS,
    DEAD_SOURCE,
    Chosen,
    DeadLetter,
    Retried,
    entry_of,
    homeless,
    letter_of,
)
from headrace.records.record import Record
from headrace.spark.connector.write_options import fence_text, write_options

PLACE = TopicPartition("dead", 0)


def record(offset: int, error: str = "bad", pipeline: str = "p", own: tuple = ()) -> Record:
    said = (error, pipeline, "orders", "3", "17", "1700000000000")
    notes = tuple((name, text.encode()) for name, text in zip(DEAD_HEADERS, said, strict=True))
    return Record(offset, 0, b"k", None, (*own, *notes))


def letters(*records: Record) -> list[DeadLetter]:
    return [letter for one in records if (letter := letter_of(PLACE, one)) is not None]


def test_a_letter_gives_the_record_back():
    own = (("trace", b"1"), ("trace", None), ("headrace.error", b"an older story"))
    (letter,) = letters(record(5, own=own))
    assert (letter.source, letter.source_offset, letter.timestamp) == (TopicPartition("orders", 3), 17, 1700000000000)
    assert (letter.key, letter.value, letter.headers) == (b"k", None, own)


def test_a_letter_says_which_source_it_did_not_fit():
    own = (("trace", b"1"),)
    (letter,) = letters(record(5, own=(*own, (DEAD_SOURCE, b"orders"))))
    assert (letter.reader, letter.headers) == ("orders", own)
    (again,) = letters(Record(9, 0, None, None, letter.to_retry("retry").headers[:-1]))
    assert (again.reader, again.headers) == ("orders", own)


@pytest.mark.parametrize("headers", [(), (("headrace.error", b"x"),), record(0).headers[1:]])
def test_what_is_no_letter_is_left_alone(headers):
    assert letter_of(PLACE, Record(0, 0, None, b"", headers)) is None


def test_letters_are_chosen_by_pipeline_error_and_number():
    found = letters(record(0, "Not JSON"), record(1, "rejected: x"), record(2, "not json"), record(3, pipeline="q"))
    assert [one.offset for one in Chosen("p").of(found, Retried())] == [0, 1, 2]
    assert [one.offset for one in Chosen("p", "NOT json").of(found, Retried())] == [0, 2]
    assert [one.offset for one in Chosen("p", limit=1).of(found, Retried())] == [0]


def test_what_was_sent_is_remembered():
    sent = letters(*(record(offset) for offset in (1, 2, 3, 7)))
    entry = entry_of(sent, "p", at_ms=1)
    assert json.loads(entry)["letters"] == {"0": [[1, 3], [7, 7]]}
    retried = Retried()
    retried.learn(entry)
    left = Chosen("p").of(letters(*(record(offset) for offset in range(9))), retried)
    assert [one.offset for one in left] == [0, 4, 5, 6, 8]


def test_a_letter_whose_partition_is_gone_has_no_home():
    (letter,) = letters(record(0))
    assert homeless([letter], {"orders": [0, 1]}) == homeless([letter], {}) == [letter]
    assert homeless([letter], {"orders": [3]}) == []


# The options with which a pipeline writes its letters


def options(**given: str):
    return write_options({"kafka.bootstrap.servers": "b:1", "deliveryGuarantee": "exactly-once", **given})


def test_a_numbered_batch_needs_a_name_a_number_and_exactly_once():
    assert options(txnAppId="query", txnVersion="7").numbered == ("query", 7)
    for wrong in ({"txnAppId": "q"}, {"txnVersion": "7"}, {"txnAppId": "q", "txnVersion": "x"}):
        with pytest.raises(InvalidConfig, match="give both"):
            options(**wrong)
    with pytest.raises(InvalidConfig, match="as the transactional ids of tasks do"):
        options(txnAppId="etl-cafe0123-1-0-0", txnVersion="1")
    with pytest.raises(InvalidConfig, match="deliveryGuarantee=exactly-once"):
        options(txnAppId="q", txnVersion="1", deliveryGuarantee="at-least-once")


def test_a_fence_is_an_owner():
    owner = options(producerFence="headrace-pipeline-copy-p,12,3").fence
    assert owner is not None
    assert fence_text(owner) == "headrace-pipeline-copy-p,12,3"
    with pytest.raises(InvalidConfig, match="producerFence"):
        options(producerFence="p")
