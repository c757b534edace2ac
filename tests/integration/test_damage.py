"""Files that are not as the broker left them: damage is never served, never silently cut, and never spreads."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from struct import pack, unpack_from

import pytest

from headrace.records.batch import walk
from headrace.records.builder import NewRecord, build_batch
from headrace.testing import LocalBroker
from tests.integration.raw import FETCH, LIST_OFFSETS, RawConnection, fetch_body, request, string

MIB = 1024 * 1024
NONE, CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR = 0, 2, 56
A_TIME_MS = 1_700_000_000_000
RECORD_BYTES = 200_000
RECORDS = 20  # five to a segment
PRODUCER_ID = 4711
TOPIC = "t"
SETTINGS = {"num.partitions": "1", "log.segment.bytes": str(MIB)}


def record(number: int) -> bytes:
    value = number.to_bytes(4) * (RECORD_BYTES // 4)
    return build_batch(
        [NewRecord(A_TIME_MS + number, b"%d" % number, value)],
        producer_id=PRODUCER_ID,
        producer_epoch=0,
        base_sequence=number,
    )


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory) -> Path:
    """A data directory after a clean shutdown, with four segments of five records each."""
    data_dir = tmp_path_factory.mktemp("undamaged") / "data"
    with LocalBroker(data_dir=data_dir, settings=SETTINGS) as broker, RawConnection(broker.port) as connection:
        assert connection.create_topic(TOPIC) == NONE
        for number in range(RECORDS):
            assert connection.produce_error(TOPIC, record(number)) == (NONE, number)
    return data_dir


@pytest.fixture
def data_dir(undamaged, tmp_path) -> Path:
    return shutil.copytree(undamaged, tmp_path / "data")


@pytest.fixture
def folder(data_dir) -> Path:
    return data_dir / f"{TOPIC}-0"


@pytest.fixture
def broker(data_dir) -> Iterator[LocalBroker]:
    """Not started yet: first comes the damage."""
    one = LocalBroker(data_dir=data_dir, settings=SETTINGS)
    yield one
    one.close()


def segment(folder: Path, base_offset: int, suffix: str = ".log") -> Path:
    return folder / f"{base_offset:020}{suffix}"


def flip_bit(file: Path, position: int) -> None:
    data = bytearray(file.read_bytes())
    data[position] ^= 1
    file.write_bytes(data)


def fetch(broker: LocalBroker, offset: int, bytes_max: int = MIB) -> tuple[int, list[int]]:
    """Error code, and the offsets of the batches that came; each is the one that was written."""
    with RawConnection(broker.port) as connection:
        connection.send(request(FETCH, 4, fetch_body(TOPIC, offset, bytes_max=bytes_max)))
        answer = connection.receive()
    position = 4 + 4 + 4 + 2 + len(TOPIC) + 4 + 4
    (code,) = unpack_from(">h", answer, position)
    data = answer[position + 2 + 8 + 8 + 4 + 4 :]
    offsets = []
    for at, header in walk(data):
        assert data[at + 21 : at + header.total_bytes] == record(header.base_offset)[21:]
        offsets.append(header.base_offset)
    return code, offsets


def readable(broker: LocalBroker, end: int = RECORDS) -> list[int]:
    """Every offset at which a fetch begins with the record of that offset."""
    return [offset for offset in range(end) if fetch(broker, offset, bytes_max=1)[1] == [offset]]


def produce(broker: LocalBroker, number: int) -> tuple[int, int]:
    with RawConnection(broker.port) as connection:
        return connection.produce_error(TOPIC, record(number))


def offset_at(broker: LocalBroker, timestamp_ms: int) -> int:
    body = pack(">ii", -1, 1) + string(TOPIC) + pack(">iiq", 1, 0, timestamp_ms)
    with RawConnection(broker.port) as connection:
        connection.send(request(LIST_OFFSETS, 1, body))
        answer = connection.receive()
    code, _, offset = unpack_from(">hqq", answer, 4 + 4 + 2 + len(TOPIC) + 4 + 4)
    assert code == NONE
    return offset


def test_one_flipped_bit_is_never_served_and_its_neighbours_are(broker, folder):
    flip_bit(segment(folder, 0), 2 * RECORD_BYTES + 3000)
    size = segment(folder, 0).stat().st_size
    broker.start()
    assert fetch(broker, 2) == (CORRUPT_MESSAGE, [])
    assert fetch(broker, 0) == (NONE, [0, 1]), "a fetch ends before the damage"
    assert readable(broker) == [offset for offset in range(RECORDS) if offset != 2]
    assert segment(folder, 0).stat().st_size == size, "nothing was cut"
    assert "corrupt" in broker.output()
    assert produce(broker, RECORDS) == (NONE, RECORDS), "new records are taken"


def test_a_flipped_bit_is_found_after_a_kill_too(broker, folder):
    broker.start()
    broker.kill()
    flip_bit(segment(folder, 5), 3000)
    broker.start()
    assert readable(broker) == [offset for offset in range(RECORDS) if offset != 5]
    assert "corrupt" in broker.output()


def test_flipped_bit_behind_the_checkpoint_hides_one_record_after_a_kill(broker, folder):
    broker.start()
    for number in range(RECORDS, RECORDS + 4):
        assert produce(broker, number) == (NONE, number)
    broker.kill()
    flip_bit(segment(folder, RECORDS), len(record(RECORDS)) + 3000)
    broker.start()
    assert readable(broker, RECORDS + 4) == [offset for offset in range(RECORDS + 4) if offset != RECORDS + 1]
    assert "corrupt" in broker.output()
    assert produce(broker, RECORDS + 4) == (NONE, RECORDS + 4)


def test_a_segment_that_lost_its_end_below_the_checkpoint_is_not_passed_over_in_silence(broker, folder):
    os.truncate(segment(folder, 5), 3 * RECORD_BYTES)
    broker.start()
    assert readable(broker) == [0, 1, 2, 3, 4, 5, 6, *range(10, RECORDS)]
    code, _ = fetch(broker, 8)
    assert code in (CORRUPT_MESSAGE, KAFKA_STORAGE_ERROR)
    assert segment(folder, 5).name in broker.output()


@pytest.mark.parametrize(
    "tail",
    [b"\0" * 5000, record(RECORDS)[:30], record(RECORDS)[:-1], b"garbage" * 1000],
    ids=["zeros", "half a header", "all but a byte", "garbage"],
)
def test_a_torn_tail_is_cut_after_a_kill_and_everything_acknowledged_is_there(broker, folder, tail):
    broker.start()
    broker.kill()
    with segment(folder, 15).open("ab") as file:
        file.write(tail)
    broker.start()
    assert readable(broker) == list(range(RECORDS))
    whole = sum(len(record(number)) for number in range(15, RECORDS))
    assert segment(folder, 15).stat().st_size == whole, "the tail is gone"
    assert segment(folder, 15).name in broker.output(), "and somebody was told"
    assert produce(broker, RECORDS) == (NONE, RECORDS)


@pytest.mark.parametrize("kill", [False, True], ids=["after a clean shutdown", "after a kill"])
@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "garbage", "cut"])
def test_indexes_are_rebuilt_whatever_became_of_them(broker, folder, kill, suffix, damage):
    if kill:
        broker.start()
        broker.kill()
    for base_offset in (0, 5, 10, 15):
        file = segment(folder, base_offset, suffix)
        if damage == "missing":
            file.unlink(missing_ok=True)
        elif damage == "garbage":
            file.write_bytes(b"\xa5" * 96)
        else:
            os.truncate(file, max(0, file.stat().st_size - 5))
    broker.start()
    assert readable(broker) == list(range(RECORDS))
    assert [offset_at(broker, A_TIME_MS + number) for number in range(RECORDS)] == list(range(RECORDS))


@pytest.mark.parametrize("kill", [False, True], ids=["after a clean shutdown", "after a kill"])
@pytest.mark.parametrize("damage", ["missing", "garbage"])
def test_a_lost_producer_snapshot_forgets_no_sequence_number(broker, folder, kill, damage):
    if kill:
        broker.start()
        broker.kill()
    for file in folder.glob("*.snapshot"):
        if damage == "missing":
            file.unlink()
        else:
            flip_bit(file, file.stat().st_size - 1)
    broker.start()
    assert produce(broker, RECORDS - 1) == (NONE, RECORDS - 1), "a duplicate is answered with its first offset"
    assert produce(broker, RECORDS) == (NONE, RECORDS)


@pytest.mark.parametrize(
    "name", ["recovery-point-offset-checkpoint", "log-start-offset-checkpoint", "replication-offset-checkpoint"]
)
@pytest.mark.parametrize("content", [None, b"", b"\0garbage\n"], ids=["missing", "empty", "garbage"])
def test_a_lost_checkpoint_costs_work_and_no_records(broker, data_dir, name, content):
    file = data_dir / name
    file.unlink(missing_ok=True)
    if content is not None:
        file.write_bytes(content)
    broker.start()
    assert readable(broker) == list(range(RECORDS))
    assert produce(broker, RECORDS) == (NONE, RECORDS)
