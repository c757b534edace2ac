"""Transactions on the way through a log: which batches were aborted, which markers have outlived theirs."""

from headrace.records.batch import CONTROL_FLAG, TRANSACTIONAL_FLAG, BatchHeader
from headrace.records.control import ControlType, EndMarker
from headrace.storage.cleaner.record_filter import CleanedTransactionMetadata
from headrace.storage.segment.transaction_index import AbortedTxn

COMMIT, ABORT = EndMarker(ControlType.COMMIT, 0), EndMarker(ControlType.ABORT, 0)
OUTLIVED, NEEDED = (True, None), (False, None)


def data(at: int, *, pid: int = 1, txn: bool = True, count: int = 1) -> BatchHeader:
    return BatchHeader(at, 100, 0, 2, 0, TRANSACTIONAL_FLAG if txn else 0, count - 1, 0, 0, pid, 0, 0, count)


def control(at: int, *, pid: int = 1, count: int = 1) -> BatchHeader:
    return BatchHeader(at, 100, 0, 2, 0, TRANSACTIONAL_FLAG | CONTROL_FLAG, 0, 0, 0, pid, 0, -1, count)


def expecting(*aborted: AbortedTxn) -> CleanedTransactionMetadata:
    transactions = CleanedTransactionMetadata()
    transactions.expect(aborted)
    return transactions


def test_a_committed_transaction_is_kept_and_so_is_its_marker() -> None:
    transactions = expecting()
    assert not transactions.data_batch(data(0))
    assert transactions.marker(control(1), COMMIT) == NEEDED


def test_the_marker_of_a_committed_transaction_without_data_has_outlived_it() -> None:
    transactions = expecting()
    transactions.data_batch(data(0, pid=2))
    assert transactions.marker(control(1), COMMIT) == OUTLIVED


def test_an_aborted_transaction_goes_and_its_marker_stays_this_time() -> None:
    txn = AbortedTxn(1, 5, 9, 10)
    transactions = expecting(txn)
    assert not transactions.data_batch(data(0)), "an earlier transaction of the same producer"
    assert transactions.marker(control(1), COMMIT) == NEEDED
    assert transactions.data_batch(data(5))
    assert transactions.data_batch(data(7))
    assert transactions.marker(control(9), ABORT) == (False, txn)
    assert not transactions.data_batch(data(10)), "a later transaction of the same producer"


def test_the_marker_of_an_aborted_transaction_without_data_has_outlived_it() -> None:
    assert expecting(AbortedTxn(1, 5, 9, 10)).marker(control(9), ABORT) == OUTLIVED
    assert expecting().marker(control(9), ABORT) == OUTLIVED


def test_batches_outside_of_transactions_are_never_aborted() -> None:
    transactions = expecting(AbortedTxn(1, 5, 9, 10))
    assert not transactions.data_batch(data(6, txn=False))
    assert not transactions.data_batch(data(6, pid=2))


def test_a_transaction_that_is_expected_twice_ends_once() -> None:
    txn = AbortedTxn(1, 5, 9, 10)
    transactions = expecting(txn)
    assert transactions.data_batch(data(5))
    transactions.expect([txn])
    assert transactions.marker(control(9), ABORT) == (False, txn)
    assert not transactions.data_batch(data(10))


def test_an_emptied_control_batch_has_outlived_everything_and_one_of_another_kind_has_not() -> None:
    assert expecting().marker(control(1, count=0), None) == OUTLIVED
    assert expecting().marker(control(1), None) == NEEDED
