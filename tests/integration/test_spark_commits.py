"""The sink's commit, stopped at every request it makes: driver gone, driver late, broker gone. No JVM is needed.

The driver's part is the real one, against a real broker; the tasks are called as Spark calls them. After whatever
happened the batch is tried again as Spark would, and then readers of committed data see every row exactly once.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from uuid import uuid4

import pytest

pa = pytest.importorskip("pyarrow")

from headrace.client.reader.arrow_reader import close_clusters, cluster_for  # noqa: E402
from headrace.client.sync.client import (  # noqa: E402
    ClientConfig,
    Cluster,
    create_topic_if_missing,
)
from headrace.client.sync.fetcher import fetch_from  # noqa: E402
from headrace.client.sync.offsets import LATEST, list_offsets  # noqa: E402
from headrace.client.sync.transactions import ProducerIdentity, init_producer, open_transactions  # noqa: E402
from headrace.client.sync.transport import Connection  # noqa: E402
from headrace.model.ids import TopicPartition  # noqa: E402
from headrace.records.record import iter_records  # noqa: E402
from headrace.records.transaction_filter import committed_batches  # noqa: E402
from headrace.spark.connector.checkpoint import CheckpointMismatch  # noqa: E402
from headrace.spark.connector.exactly_once import (  # noqa: E402
    CheckpointCopied,
    CommitFailed,
    Decision,
    ExactlyOnceCommitter,
    task_id,
)
from headrace.spark.connector.task_writer import write_in_transaction, write_rows  # noqa: E402
from headrace.spark.connector.write_options import write_options  # noqa: E402
from headrace.testing import LocalBroker  # noqa: E402

BEFORE, AFTER = "before", "after"


class Crash(BaseException):
    """The process is gone; nothing in it reacts any more."""


@dataclass
class Point:
    """One place in a commit: before or after its nth request. What happens there is the test's."""

    number: int
    side: str
    act: Callable[[], None]
    seen: int = field(default=0)
    reached: bool = field(default=False)

    def pass_by(self, side: str) -> None:
        if side == self.side and self.seen == self.number and not self.reached:
            self.reached = True
            self.act()
        if side == AFTER:
            self.seen += 1


class WatchedConnection(Connection):
    point: Point

    def exchange(self, request, response_type):
        self.point.pass_by(BEFORE)
        answer = super().exchange(request, response_type)
        self.point.pass_by(AFTER)
        return answer


class WatchedCluster(Cluster):
    """A cluster whose requests can be counted, and stopped at one of them."""

    def __init__(self, settings: ClientConfig, point: Point) -> None:
        super().__init__(settings)
        self._point = point

    def connection(self, address):
        if address not in self._connections:
            made = WatchedConnection.__new__(WatchedConnection)
            made.point = Point(-1, BEFORE, lambda: None)  # the handshake of a connection is no request of the commit
            Connection.__init__(made, *address, self.settings.request_timeout_s)
            made.point = self._point
            self._connections[address] = made
        return self._connections[address]


class Stage:
    """One query that writes one batch, as often as it has to."""

    def __init__(self, broker: LocalBroker, *, fenced: bool = False) -> None:
        self.broker = broker
        self.fenced = fenced  # the driver decides as the owner that was made when it started, as a pipeline's does
        self.query = uuid4().hex
        self.topic = f"out-{self.query[:8]}"
        self.options = write_options({"kafka.bootstrap.servers": broker.bootstrap, "topic": self.topic})
        self.cluster = cluster_for(self.options.client)  # the one that the tasks use
        create_topic_if_missing(self.cluster, self.topic)

    def tasks(self, run: str, batch: int, rows: dict[int, list[bytes]]) -> Decision:
        """What the executors do with a batch: each task writes its rows, or sees that they count already."""
        decided = ExactlyOnceCommitter(self.cluster, self.query).last(stable=False)
        owners = []
        if decided is None or decided.batch_id < batch:
            for task, values in rows.items():
                table = pa.record_batch({"value": pa.array(values, pa.binary())})
                name = task_id(self.query, run, batch % 16, f"{task}-0")
                owner, _ = write_in_transaction(self.options, [table], name)
                assert owner is not None
                owners.append(owner)
        return Decision(batch, run, tuple(owners))

    def started(self) -> ProducerIdentity | None:
        """What a driver takes over when it starts."""
        return init_producer(self.cluster, f"copy-{self.query}", 60_000) if self.fenced else None

    def commit(self, decision: Decision, point: Point | None = None, fence: ProducerIdentity | None = None) -> None:
        watched = WatchedCluster(self.cluster.settings, point or Point(-1, BEFORE, lambda: None))
        try:
            ExactlyOnceCommitter(watched, self.query, fence).commit(decision)
        finally:
            watched.close()

    def attempt(self, run: str, batch: int, rows: dict[int, list[bytes]], tries: int = 3) -> None:
        """As a query does that is started again when a batch fails."""
        for number in range(tries):
            fence = self.started()
            try:
                self.commit(self.tasks(f"{run}.{number}", batch, rows), fence=fence)
                return
            except CommitFailed:
                continue
        raise AssertionError(f"batch {batch} failed {tries} times")

    def committed(self) -> list[bytes]:
        place = TopicPartition(self.topic, 0)
        self.cluster.forget()
        end = list_offsets(self.cluster, {place: LATEST}, read_committed=True)[place] or 0
        whole = list_offsets(self.cluster, {place: LATEST}, read_committed=False)[place] or 0
        assert end == whole, "something is still open"
        found = []
        for fetched in fetch_from(self.cluster, place, 0, end, read_committed=True, bytes_max=1 << 20):
            for batch, header in committed_batches(fetched.batches, fetched.aborted):
                found += [record.value for record in iter_records(batch, header)]
        return sorted(found)


BATCH = {0: [b"a1", b"a2"], 1: [b"b1"], 2: [b"c1", b"c2", b"c3"]}
ROWS = sorted(value for values in BATCH.values() for value in values)
# The batch planned again may be cut differently: which task wrote what must not matter.
BATCH_AGAIN = {0: [b"c1", b"a2", b"b1"], 1: [b"c2", b"a1", b"c3"]}


def places() -> Iterator[tuple[int, str]]:
    for number in range(200):
        yield number, BEFORE
        yield number, AFTER


def _failure_of(stage: Stage, decision: Decision, point: Point, fence: ProducerIdentity | None) -> list[BaseException]:
    try:
        stage.commit(decision, point, fence)
    except BaseException as error:
        return [error]
    return []


def crash() -> None:
    raise Crash


@pytest.fixture(scope="module")
def broker() -> Iterator[LocalBroker]:
    with LocalBroker(memory=False) as broker:
        yield broker
        close_clusters()


def test_a_driver_that_dies_at_any_request_loses_and_repeats_nothing(broker):
    reached = 0
    for number, side in places():
        stage = Stage(broker)
        point = Point(number, side, crash)
        with suppress(Crash):
            stage.commit(stage.tasks("r1", 0, BATCH), point)
        if not point.reached:
            break
        reached += 1
        stage.attempt("r2", 0, BATCH_AGAIN)
        stage.attempt("r2", 1, {0: [b"next"]})
        assert stage.committed() == sorted([*ROWS, b"next"]), f"{side} request {number}"
        assert open_transactions(stage.cluster, f"headrace-spark-{stage.query}-") == []
    assert reached > 30


@pytest.mark.parametrize("fenced", [False, True], ids=["taking-over", "fenced"])
def test_a_driver_that_wakes_up_late_at_any_request_changes_nothing(broker, fenced):
    """Two drivers of one query: the first is held up at a request, the second does the batch, the first goes on."""
    reached = 0
    for number, side in places():
        stage = Stage(broker, fenced=fenced)
        fence = stage.started()
        held, go_on = threading.Event(), threading.Event()

        def hold(held=held, go_on=go_on) -> None:
            held.set()
            assert go_on.wait(60)

        point = Point(number, side, hold)
        decision = stage.tasks("r1", 0, BATCH)
        failures: list[BaseException] = []

        def zombie(stage=stage, decision=decision, point=point, failures=failures, held=held, fence=fence) -> None:
            failures += _failure_of(stage, decision, point, fence)
            held.set()

        thread = threading.Thread(target=zombie)
        thread.start()
        assert held.wait(60)
        if point.reached:
            stage.attempt("r2", 0, BATCH_AGAIN)
        go_on.set()
        thread.join(60)
        if not point.reached:
            break
        reached += 1
        assert {type(error) for error in failures} <= {CommitFailed}, failures
        stage.attempt("r2", 1, {0: [b"next"]})
        assert stage.committed() == sorted([*ROWS, b"next"]), f"{side} request {number}"
    assert reached > 30


def test_a_broker_that_dies_at_any_request_is_waited_for(broker):
    """Every fourth request: each costs a restart of the broker."""
    reached = 0
    for number, side in [place for index, place in enumerate(places()) if index % 4 == 0]:
        stage = Stage(broker)
        point = Point(number, side, lambda: (broker.kill(), broker.start()))
        stage.commit(stage.tasks("r1", 0, BATCH), point)
        if not point.reached:
            break
        reached += 1
        stage.attempt("r1", 1, {0: [b"next"]})
        assert stage.committed() == sorted([*ROWS, b"next"]), f"{side} request {number}"
    assert reached > 8


def test_an_idempotent_producer_outlives_tasks_and_brokers(broker):
    """At least once: the broker is killed between and under writes, and answers that were lost write nothing twice."""
    stage = Stage(broker)
    written: list[bytes] = []
    for task in range(4):
        if task % 2:
            broker.kill()
            broker.start()
        values = [b"%d-%05d" % (task, row) for row in range(30_000)]
        tables = [pa.record_batch({"value": pa.array(values[at : at + 5000])}) for at in range(0, 30_000, 5000)]
        restart = threading.Timer(0.05, lambda: (broker.kill(), broker.start()))
        if task == 2:
            restart.start()
        assert write_rows(stage.options, tables) == len(values)
        if task == 2:
            restart.join()
        written += values
    assert stage.committed() == sorted(written)


def test_an_abort_after_a_commit_undoes_nothing(broker):
    """Spark calls abort as well when a commit succeeded and its driver failed right behind it."""
    stage = Stage(broker)
    decision = stage.tasks("r1", 0, BATCH)
    stage.commit(decision)
    ExactlyOnceCommitter(stage.cluster, stage.query).abort(decision.transactions, 0)
    failed = stage.tasks("r1", 1, {0: [b"never"]})
    ExactlyOnceCommitter(stage.cluster, stage.query).abort(failed.transactions, 1)
    assert stage.committed() == ROWS


def test_a_decision_of_many_tasks_is_read_back_whole(broker):
    stage = Stage(broker)
    decision = stage.tasks("r1", 0, {task: [b"%03d" % task] for task in range(120)})
    stage.commit(decision)
    again = ExactlyOnceCommitter(stage.cluster, stage.query).last(stable=True)
    assert again == decision
    assert len(stage.committed()) == 120


def test_transactions_that_timed_out_fail_the_batch_and_it_is_written_again(broker):
    stage = Stage(broker)
    decision = stage.tasks("r1", 0, BATCH)
    stage.tasks("r1", 0, {1: [b"stolen"]})  # takes the id over, as a timeout or a second driver would
    with pytest.raises(CommitFailed, match="not open any more"):
        stage.commit(decision)
    stage.attempt("r2", 0, BATCH)
    assert stage.committed() == ROWS


def test_a_decided_batch_whose_transactions_are_all_gone_is_written_again(broker):
    stage = Stage(broker)
    decision = stage.tasks("r1", 0, BATCH)
    ends = []

    def at_first_end() -> None:
        ends.append(1)
        raise Crash

    class Dying(ExactlyOnceCommitter):
        def _end(self, decision: Decision) -> None:
            at_first_end()

    with pytest.raises(Crash):
        Dying(stage.cluster, stage.query).commit(decision)
    stage.cluster.forget()
    for task in BATCH:
        init_producer(stage.cluster, task_id(stage.query, "r1", 0, f"{task}-0"), 60_000)  # fences, and so aborts
    stage.attempt("r2", 0, BATCH_AGAIN)
    assert stage.committed() == ROWS


@pytest.mark.parametrize("number", [0, 1], ids=["older-batch", "same-batch-number"])
def test_refusal_of_a_restored_checkpoint_completes_the_decided_batch(broker, number):
    """The driver was killed behind its decision, and what comes next plans other records. The refusal names the
    decision's end offsets as written, so they must be."""
    stage = Stage(broker)
    stage.attempt("r1", 0, {0: [b"first"]})

    class Killed(ExactlyOnceCommitter):
        def _end(self, decision: Decision) -> None:
            raise Crash

    decision = stage.tasks("r1", 1, BATCH)._replace(ends='[{"orders":{"0":20}}]')
    with pytest.raises(Crash):
        Killed(stage.cluster, stage.query).commit(decision)
    stage.cluster.forget()
    other = stage.tasks("r2", number, {0: [b"other"]})._replace(ends='[{"orders":{"0":90}}]')
    with pytest.raises(CheckpointMismatch, match="has batch 1"):
        stage.commit(other)
    assert stage.committed() == sorted([b"first", *ROWS])


def test_decision_that_is_taken_back_leaves_the_ends_of_the_one_before(broker):
    """Otherwise a restored checkpoint could plan the batch before with other records, and they would be left out."""
    stage = Stage(broker)
    first = stage.tasks("r1", 0, {0: [b"first"]})._replace(ends='[{"orders":{"0":10}}]')
    stage.commit(first)

    class Killed(ExactlyOnceCommitter):
        def _end(self, decision: Decision) -> None:
            raise Crash

    with pytest.raises(Crash):
        Killed(stage.cluster, stage.query).commit(stage.tasks("r1", 1, BATCH)._replace(ends='[{"orders":{"0":20}}]'))
    stage.cluster.forget()
    for task in BATCH:
        init_producer(stage.cluster, task_id(stage.query, "r1", 1, f"{task}-0"), 60_000)  # fences, and so aborts
    with pytest.raises(CommitFailed, match="timed out"):
        stage.commit(stage.tasks("r2", 1, BATCH)._replace(ends='[{"orders":{"0":20}}]'))
    with pytest.raises(CheckpointMismatch, match="has batch 0"):
        stage.commit(stage.tasks("r3", 0, {0: [b"other"]})._replace(ends='[{"orders":{"0":15}}]'))
    stage.attempt("r4", 1, BATCH_AGAIN)
    assert stage.committed() == sorted([b"first", *ROWS])


def test_copied_checkpoint_with_another_target_is_refused(broker):
    """The same query id and the same batch: its rows would be left out as written, and they are in another topic."""
    stage = Stage(broker)
    stage.commit(stage.tasks("r1", 0, {0: [b"first"]})._replace(ends="[5]", target="orders"))
    with pytest.raises(CheckpointCopied, match="is in orders, and this one writes to copies"):
        stage.commit(stage.tasks("r2", 0, {0: [b"first"]})._replace(ends="[5]", target="copies"))
    stage.commit(stage.tasks("r3", 0, {0: [b"first"]})._replace(ends="[5]", target="orders"))
    assert stage.committed() == [b"first"]
