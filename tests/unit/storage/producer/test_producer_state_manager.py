"""Idempotent producers: one test a rule, then random histories against a model that remembers everything."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from headrace.model.errors import (
    CoordinatorFenced,
    HeadraceError,
    InvalidProducerEpoch,
    InvalidRecord,
    InvalidTransactionState,
    OutOfOrderSequence,
)
from headrace.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchHeader
from headrace.storage.producer.producer_snapshot_file import SnapshotRow, encode_snapshot
from headrace.storage.producer.producer_state_entry import BATCHES_REMEMBERED, ProducerStateEntry
from headrace.storage.producer.producer_state_manager import CompletedTxn, ProducerStateManager

SEQUENCE_MAX = 2**31 - 1


def batch(
    sequence: int,
    *,
    at: int = 0,
    count: int = 10,
    pid: int = 7,
    epoch: int = 0,
    time: int = 0,
    txn: bool = False,
) -> BatchHeader:
    attributes = TRANSACTIONAL_FLAG if txn else 0
    return BatchHeader(at, 100, 0, 2, 0, attributes, count - 1, time, time, pid, epoch, sequence, count)


def marker(*, at: int, pid: int = 7, epoch: int = 0) -> BatchHeader:
    attributes = TRANSACTIONAL_FLAG | CONTROL_FLAG
    return BatchHeader(at, 78, 0, 2, 0, attributes, 0, 0, 0, pid, epoch, -1, 1)


def producers_after(*batches: BatchHeader) -> ProducerStateManager:
    states = ProducerStateManager()
    for header in batches:
        states.applied(header)
    return states


def known(states: ProducerStateManager) -> dict[int, tuple[object, ...]]:
    return {entry.producer_id: facts(entry) for entry in states.active()}


def facts(entry: ProducerStateEntry) -> tuple[object, ...]:
    return (
        entry.epoch,
        tuple(entry.batches),
        entry.next_sequence,
        entry.last_timestamp,
        entry.coordinator_epoch,
        entry.txn_first_offset,
    )


# ── rule 11: idempotence ──


def test_rule_11_the_next_batch_in_order_is_appended() -> None:
    assert producers_after(batch(0, at=0)).check(batch(10)) is None


def test_rule_11_an_unknown_producer_may_start_anywhere() -> None:
    assert ProducerStateManager().check(batch(12345, epoch=9)) is None


def test_rule_11_each_of_the_last_five_batches_is_answered_with_its_first_offset() -> None:
    states = producers_after(*(batch(n * 10, at=100 + n * 20) for n in range(7)))
    assert [states.check(batch(n * 10)) for n in range(2, 7)] == [140, 160, 180, 200, 220]


def test_rule_11_the_sixth_last_batch_is_forgotten() -> None:
    states = producers_after(*(batch(n * 10, at=n * 10) for n in range(BATCHES_REMEMBERED + 1)))
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(0))


def test_rule_11_a_batch_that_only_begins_like_a_known_one_is_out_of_order() -> None:
    with pytest.raises(OutOfOrderSequence):
        producers_after(batch(0)).check(batch(0, count=5))


def test_rule_11_a_gap_in_the_sequence_is_out_of_order() -> None:
    with pytest.raises(OutOfOrderSequence):
        producers_after(batch(0)).check(batch(11))


def test_rule_11_a_lower_epoch_is_refused_even_for_a_known_batch() -> None:
    with pytest.raises(InvalidProducerEpoch):
        producers_after(batch(0, epoch=3)).check(batch(0, epoch=2))


def test_rule_11_a_new_epoch_starts_at_sequence_zero() -> None:
    states = producers_after(batch(0, epoch=3))
    assert states.check(batch(0, epoch=4)) is None
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(10, epoch=4))


def test_rule_11_a_new_epoch_forgets_the_batches_of_the_old_one() -> None:
    states = producers_after(batch(0, at=0), batch(0, at=50, epoch=1))
    assert states.check(batch(0, epoch=1)) == 50
    assert states.check(batch(10, epoch=1)) is None


@pytest.mark.parametrize(
    ("first", "count", "following"),
    [
        pytest.param(SEQUENCE_MAX, 1, 0, id="the last sequence of all"),
        pytest.param(SEQUENCE_MAX - 9, 10, 0, id="a batch that ends with it"),
        pytest.param(SEQUENCE_MAX - 4, 10, 5, id="a batch that runs over it"),
    ],
)
def test_rule_11_sequences_wrap_from_two_to_the_31_minus_1_to_zero(first: int, count: int, following: int) -> None:
    states = producers_after(batch(first, count=count, at=77))
    assert states.check(batch(following)) is None
    assert states.check(batch(first, count=count)) == 77
    restored = ProducerStateManager.from_snapshot(states.to_snapshot())
    assert restored.check(batch(following)) is None
    assert restored.check(batch(first, count=count)) == 77


def test_a_batch_with_a_producer_but_without_a_sequence_is_an_invalid_record() -> None:
    with pytest.raises(InvalidRecord):
        ProducerStateManager().check(batch(-1))
    with pytest.raises(InvalidRecord):
        producers_after(batch(0)).check(batch(-1))


def test_deciding_changes_nothing() -> None:
    states = producers_after(batch(0, at=5))
    before = known(states)
    states.check(batch(10))
    states.check(batch(0))
    states.check(batch(0, pid=8))
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(99))
    assert known(states) == before


# ── expiry ──


NOW = 1_700_000_000_000


@pytest.mark.parametrize("timestamp", [-1, 0, NOW - 1_000, NOW, NOW + 10**9])
def test_producer_expires_by_append_time_and_not_by_timestamps(timestamp: int) -> None:
    states = producers_after(batch(0, at=5, time=timestamp))
    assert states.expire(now_ms=NOW, expiration_ms=1_000) == 0
    assert states.expire(now_ms=NOW + 999, expiration_ms=1_000) == 0
    assert states.check(batch(0)) == 5, "a retry is recognized until then"
    assert states.expire(now_ms=NOW + 1_000, expiration_ms=1_000) == 1
    assert states.get(7) is None
    assert states.check(batch(12345)) is None, "and then any sequence is accepted"


@pytest.mark.parametrize("write", ["batch", "marker", "emptied marker"])
def test_producer_that_writes_does_not_expire(write: str) -> None:
    states = producers_after(batch(0), batch(0, pid=8))
    states.expire(now_ms=NOW, expiration_ms=1_000)
    if write == "batch":
        states.applied(batch(10, at=10))
    elif write == "marker":
        states.applied_marker(marker(at=10), aborted=True, coordinator_epoch=0)
    else:
        states.applied_emptied_marker(marker(at=10))
    assert states.expire(now_ms=NOW + 1_000, expiration_ms=1_000) == 1
    assert [entry.producer_id for entry in states.active()] == [7]
    assert states.expire(now_ms=NOW + 2_000, expiration_ms=1_000) == 1


def test_clock_that_is_set_back_does_not_keep_producers_forever() -> None:
    states = producers_after(batch(0))
    states.expire(now_ms=NOW, expiration_ms=1_000)
    states.expire(now_ms=5, expiration_ms=1_000)
    assert states.expire(now_ms=1_005, expiration_ms=1_000) == 1


def test_opened_log_starts_the_expiration_over() -> None:
    states = ProducerStateManager.from_snapshot(producers_after(batch(0, at=5, time=0)).to_snapshot())
    assert states.expire(now_ms=NOW, expiration_ms=1_000) == 0
    assert states.check(batch(0)) == 5
    assert states.expire(now_ms=NOW + 1_000, expiration_ms=1_000) == 1


def test_a_producer_with_an_open_transaction_is_never_forgotten() -> None:
    states = producers_after(batch(0, txn=True))
    assert states.expire(now_ms=10**12, expiration_ms=1) == 0


# ── transactions ──


def test_the_first_unstable_offset_is_that_of_the_oldest_open_transaction() -> None:
    states = producers_after(batch(0, at=10, txn=True), batch(0, at=20, pid=8, txn=True), batch(10, at=30, txn=True))
    assert states.first_unstable_offset == 10
    states.applied_marker(marker(at=40), aborted=False, coordinator_epoch=0)
    states.high_watermark_advanced(41)
    assert states.first_unstable_offset == 20


def test_a_decided_transaction_stays_unstable_until_the_watermark_passes_its_marker() -> None:
    states = producers_after(batch(0, at=10, txn=True))
    states.applied_marker(marker(at=20), aborted=False, coordinator_epoch=0)
    assert states.first_unstable_offset == 10
    states.high_watermark_advanced(20)
    assert states.first_unstable_offset == 10, "the marker itself is not replicated yet"
    states.high_watermark_advanced(21)
    assert states.first_unstable_offset is None


def test_an_aborted_transaction_says_what_the_index_needs() -> None:
    states = producers_after(batch(0, at=10, txn=True), batch(0, at=20, pid=8, txn=True))
    assert states.applied_marker(marker(at=30, pid=8), aborted=True, coordinator_epoch=1) == CompletedTxn(
        producer_id=8, first_offset=20, last_offset=30, last_stable_offset=10, aborted=True
    )
    assert states.applied_marker(marker(at=31), aborted=True, coordinator_epoch=1) == CompletedTxn(
        producer_id=7, first_offset=10, last_offset=31, last_stable_offset=32, aborted=True
    )


def test_a_marker_without_data_completes_nothing_but_fences_by_its_epoch() -> None:
    states = ProducerStateManager()
    assert states.applied_marker(marker(at=3, epoch=5), aborted=True, coordinator_epoch=2) is None
    assert states.first_unstable_offset is None
    with pytest.raises(InvalidProducerEpoch):
        states.check(batch(0, epoch=4, txn=True))
    assert states.check(batch(0, epoch=5, txn=True)) is None


def test_a_marker_that_compaction_emptied_still_fences() -> None:
    states = ProducerStateManager()
    states.applied_emptied_marker(marker(at=3, epoch=5))
    with pytest.raises(InvalidProducerEpoch):
        states.check(batch(0, epoch=4))


def test_sequences_go_on_after_a_marker_of_the_same_epoch_and_start_over_after_one_that_bumps_it() -> None:
    states = producers_after(batch(0, at=0, txn=True))
    states.applied_marker(marker(at=10), aborted=False, coordinator_epoch=0)
    assert states.check(batch(10, txn=True)) is None
    states.applied_marker(marker(at=11, epoch=1), aborted=False, coordinator_epoch=0)
    assert states.check(batch(0, epoch=1, txn=True)) is None
    with pytest.raises(OutOfOrderSequence):
        states.check(batch(10, epoch=1, txn=True))


def test_a_batch_outside_of_the_open_transaction_is_refused() -> None:
    states = producers_after(batch(0, txn=True))
    with pytest.raises(InvalidTransactionState):
        states.check(batch(10))
    with pytest.raises(InvalidTransactionState):
        states.check(batch(0, epoch=1))


def test_a_coordinators_own_batches_are_fenced_by_epoch_alone() -> None:
    states = producers_after(batch(0, epoch=2))
    states.check_without_sequence(batch(-1, epoch=2, txn=True))
    states.check_without_sequence(batch(-1, epoch=2, pid=99))
    with pytest.raises(InvalidProducerEpoch):
        states.check_without_sequence(batch(-1, epoch=1, txn=True))


def test_a_marker_of_a_fenced_coordinator_is_refused() -> None:
    states = producers_after(batch(0, txn=True))
    states.applied_marker(marker(at=10), aborted=False, coordinator_epoch=4)
    states.check_marker(marker(at=11), 4, uses_tv2=False)
    with pytest.raises(CoordinatorFenced):
        states.check_marker(marker(at=11), 3, uses_tv2=False)


def test_a_late_marker_does_not_end_the_transaction_that_came_after_it() -> None:
    states = producers_after(batch(0, epoch=5, txn=True))
    states.check_marker(marker(at=10, epoch=6), 0, uses_tv2=True)
    with pytest.raises(InvalidProducerEpoch):
        states.check_marker(marker(at=10, epoch=5), 0, uses_tv2=True)
    with pytest.raises(InvalidProducerEpoch):
        states.check_marker(marker(at=10, epoch=4), 0, uses_tv2=False)


def test_a_bumped_marker_may_be_written_again() -> None:
    states = producers_after(batch(0, epoch=5, txn=True))
    states.applied_marker(marker(at=10, epoch=6), aborted=True, coordinator_epoch=0)
    states.check_marker(marker(at=11, epoch=6), 0, uses_tv2=True)


# ── rule 12: restart ──


def test_rule_12_a_snapshot_that_kafka_wrote_keeps_the_last_batch_of_each_producer() -> None:
    row = SnapshotRow(
        producer_id=7,
        epoch=2,
        last_sequence=19,
        last_offset=119,
        offset_delta=9,
        last_timestamp=5,
        coordinator_epoch=3,
        txn_first_offset=100,
    )
    states = ProducerStateManager.from_snapshot(encode_snapshot([row]))
    assert states.check(batch(10, epoch=2, txn=True)) == 110
    assert states.check(batch(20, epoch=2, txn=True)) is None
    assert states.first_unstable_offset == 100


def test_rule_12_a_cleared_state_knows_nobody() -> None:
    states = producers_after(batch(0, txn=True))
    states.clear()
    assert len(states) == 0
    assert states.first_unstable_offset is None
    assert states.check(batch(500)) is None


class RememberEverything:
    """The rules, from the whole history: slow, and easy to believe."""

    def __init__(self) -> None:
        self.history: dict[int, list[tuple[int, int, int, int]]] = {}

    def verdict(self, header: BatchHeader) -> object:
        past = self.history.get(header.producer_id, [])
        if not past:
            return None
        epoch = past[-1][0]
        if header.producer_epoch < epoch:
            return InvalidProducerEpoch
        if header.producer_epoch > epoch:
            return None if header.base_sequence == 0 else OutOfOrderSequence
        this_epoch = [entry for entry in past if entry[0] == epoch]
        for _, sequence, count, offset in this_epoch[-5:]:
            if (sequence, count) == (header.base_sequence, header.record_count):
                return offset
        _, sequence, count, _ = this_epoch[-1]
        return None if header.base_sequence == (sequence + count) % 2**31 else OutOfOrderSequence

    def append(self, header: BatchHeader) -> None:
        self.history.setdefault(header.producer_id, []).append(
            (header.producer_epoch, header.base_sequence, header.record_count, header.base_offset)
        )


pids = st.sampled_from([1, 2, 3])
counts = st.integers(1, 4)


class ProducersAgainstTheModel(RuleBasedStateMachine):
    """Every verdict equals the model's, whatever was produced, repeated, bumped, expired, or restarted."""

    def __init__(self) -> None:
        super().__init__()
        self.states = ProducerStateManager()
        self.model = RememberEverything()
        self.log: list[BatchHeader] = []
        self.snapshots: list[tuple[int, bytes]] = []

    @initialize(start=st.sampled_from([0, 5, SEQUENCE_MAX - 6, SEQUENCE_MAX]))
    def begin(self, start: int) -> None:
        for pid in (1, 2):
            self.send(pid, 0, start, 1)

    def send(self, pid: int, epoch: int, sequence: int, count: int) -> None:
        end = self.log[-1].next_offset if self.log else 0
        header = batch(sequence, at=end, pid=pid, epoch=epoch, count=count, time=end)
        expected = self.model.verdict(header)
        try:
            verdict: object = self.states.check(header)
        except HeadraceError as error:
            verdict = type(error)
        assert verdict == expected
        if verdict is None:
            self.states.applied(header)
            self.model.append(header)
            self.log.append(header)

    @rule(pid=pids, count=counts)
    def next_in_order(self, pid: int, count: int) -> None:
        entry = self.states.get(pid)
        self.send(pid, entry.epoch if entry else 0, entry.next_sequence if entry else 0, count)

    @rule(data=st.data())
    def repeat(self, data: st.DataObject) -> None:
        old = data.draw(st.sampled_from(self.log[-12:]))
        self.send(old.producer_id, old.producer_epoch, old.base_sequence, old.record_count)

    @rule(pid=pids, epoch=st.integers(0, 4), sequence=st.integers(0, 12), count=counts)
    def anything(self, pid: int, epoch: int, sequence: int, count: int) -> None:
        self.send(pid, epoch, sequence, count)

    @rule(pid=pids, count=counts)
    def bump_the_epoch(self, pid: int, count: int) -> None:
        entry = self.states.get(pid)
        self.send(pid, (entry.epoch if entry else 0) + 1, 0, count)

    @rule()
    def write_a_snapshot(self) -> None:
        self.snapshots.append((len(self.log), self.states.to_snapshot()))

    @rule(data=st.data())
    def restart(self, data: st.DataObject) -> None:
        """From any snapshot, or none, and the headers after it."""
        position, snapshot = data.draw(
            st.sampled_from([(0, ProducerStateManager().to_snapshot()), *self.snapshots]), label="snapshot"
        )
        before = known(self.states)
        self.states = ProducerStateManager.from_snapshot(snapshot)
        for header in self.log[position:]:
            self.states.applied(header)
        assert known(self.states) == before, "rebuilt and live are the same"

    @invariant()
    def nobody_has_more_than_five_batches(self) -> None:
        assert all(len(entry.batches) <= BATCHES_REMEMBERED for entry in self.states.active())


ProducersAgainstTheModel.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
test_every_verdict_equals_the_models = ProducersAgainstTheModel.TestCase


class TransactionsAgainstTheModel(RuleBasedStateMachine):
    """The first unstable offset equals what the whole log says, also after a restart."""

    def __init__(self) -> None:
        super().__init__()
        self.states = ProducerStateManager()
        self.end = 0
        self.high_watermark = 0
        self.open: dict[int, int] = {}
        self.ended: list[tuple[int, int]] = []
        self.sequences: dict[int, int] = {}

    @rule(pid=pids, count=counts)
    def write_in_a_transaction(self, pid: int, count: int) -> None:
        header = batch(self.sequences.get(pid, 0), at=self.end, pid=pid, count=count, txn=True)
        assert self.states.check(header) is None
        self.states.applied(header)
        self.open.setdefault(pid, self.end)
        self.sequences[pid] = header.base_sequence + count
        self.end += count

    @rule(pid=pids, aborted=st.booleans())
    def end_the_transaction(self, pid: int, aborted: bool) -> None:
        completed = self.states.applied_marker(marker(at=self.end, pid=pid), aborted=aborted, coordinator_epoch=0)
        first = self.open.pop(pid, None)
        if first is None:
            assert completed is None
        else:
            stable = min(self.open.values(), default=self.end + 1)
            assert completed == CompletedTxn(pid, first, self.end, stable, aborted)
            self.ended.append((first, self.end))
        self.end += 1

    @rule(part=st.floats(0, 1))
    def advance_the_watermark(self, part: float) -> None:
        self.high_watermark += round((self.end - self.high_watermark) * part)
        self.states.high_watermark_advanced(self.high_watermark)

    @rule()
    def restart_cleanly(self) -> None:
        self.high_watermark = self.end
        self.states = ProducerStateManager.from_snapshot(self.states.to_snapshot())

    @invariant()
    def the_first_unstable_offset_is_right(self) -> None:
        unstable = [first for first, mark in self.ended if mark >= self.high_watermark]
        assert self.states.first_unstable_offset == min([*self.open.values(), *unstable], default=None)


TransactionsAgainstTheModel.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
test_the_first_unstable_offset_equals_the_models = TransactionsAgainstTheModel.TestCase
