"""What a batch is told that comes behind one that was refused."""

import pytest

from headrace.broker.handlers.data import produce_error_cache
from headrace.broker.handlers.data.produce_error_cache import KEPT_MS, ProduceErrorCache
from headrace.model.errors import HeadraceError, InvalidRecord, NotEnoughReplicas, NotLeader, OutOfOrderSequence
from headrace.records.builder import NewRecord, build_batch

PLACE = ("t", 0)
NOT_LEADING, OUT_OF_ORDER = NotLeader("broker 2 leads"), OutOfOrderSequence("5 where 4 comes next")


def batch(sequence: int, producer_id: int = 7, epoch: int = 0) -> memoryview:
    built = build_batch(
        [NewRecord(0, b"k", b"v")], producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence
    )
    return memoryview(built)


def told(
    kept: ProduceErrorCache, sequence: int, error: HeadraceError = OUT_OF_ORDER, now_ms: int = 0, **of: int
) -> HeadraceError:
    return kept.told(PLACE, batch(sequence, **of), error, now_ms)


def test_whoever_comes_behind_is_told_the_same() -> None:
    kept = ProduceErrorCache()
    assert told(kept, 4, NOT_LEADING) is NOT_LEADING
    assert told(kept, 5) is NOT_LEADING
    assert told(kept, 6) is NOT_LEADING


def test_the_first_refusal_counts_until_that_batch_comes_again() -> None:
    kept, too_few = ProduceErrorCache(), NotEnoughReplicas("1 of 2")
    told(kept, 4, NOT_LEADING)
    told(kept, 5, too_few)
    assert told(kept, 6) is NOT_LEADING
    told(kept, 4, too_few)
    assert told(kept, 6) is too_few


def test_sequences_go_around() -> None:
    kept = ProduceErrorCache()
    told(kept, 2**31 - 1, NOT_LEADING)
    assert told(kept, 0) is NOT_LEADING


def test_what_is_out_of_order_by_itself_is_told_so() -> None:
    kept = ProduceErrorCache()
    assert told(kept, 5) is OUT_OF_ORDER
    told(kept, 4, InvalidRecord("for good"))
    assert told(kept, 5) is OUT_OF_ORDER
    told(kept, 4, NOT_LEADING)
    assert told(kept, 3) is OUT_OF_ORDER, "before it"
    assert told(kept, 5, producer_id=8) is OUT_OF_ORDER, "another producer"
    assert told(kept, 5, epoch=1) is OUT_OF_ORDER, "another epoch"
    assert kept.told(("t", 1), batch(5), OUT_OF_ORDER, 0) is OUT_OF_ORDER, "another partition"
    assert told(kept, 5, now_ms=KEPT_MS + 1) is OUT_OF_ORDER, "long ago"
    assert kept.told(PLACE, memoryview(b"no batch"), NOT_LEADING, 0) is NOT_LEADING


def test_the_oldest_notes_make_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(produce_error_cache, "NOTES_MAX", 2)
    kept = ProduceErrorCache()
    for producer_id in (1, 2, 3):
        told(kept, 4, NOT_LEADING, producer_id=producer_id)
    assert told(kept, 5, producer_id=1) is OUT_OF_ORDER
    assert told(kept, 5, producer_id=3) is NOT_LEADING
