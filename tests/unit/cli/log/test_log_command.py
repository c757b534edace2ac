"""`headrace log …` finds what is wrong with segment files, whoever wrote them, and nothing where nothing is."""

import json
from struct import pack

import pytest
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.records.batch import HEADER_BYTES
from headrace.records.builder import NewRecord, build_batch
from headrace.records.compression import Codec
from headrace.records.control import ControlType, EndMarker, build_marker_batch
from headrace.storage.producer.producer_snapshot_file import SnapshotRow, encode_snapshot
from headrace.storage.segment.transaction_index import ENTRY as TXN_ENTRY


def batch(base_offset, count=3, codec=Codec.NONE, timestamp=1_700_000_000_000):
    records = [
        NewRecord(timestamp=timestamp + base_offset + i, key=b"k%d" % i, value=b"v" * 20, headers=(("h", b"1"),))
        for i in range(count)
    ]
    return build_batch(records, base_offset=base_offset, codec=codec)


@pytest.fixture
def folder(tmp_path):
    """A partition with two segments, indexes, a snapshot and an epoch file, all in order."""
    folder = tmp_path / "orders-0"
    folder.mkdir()
    first, second = batch(0), batch(3, codec=Codec.ZSTD)
    (folder / f"{0:020d}.log").write_bytes(first + second)
    (folder / f"{0:020d}.index").write_bytes(pack(">II", 5, len(first)))
    (folder / f"{0:020d}.timeindex").write_bytes(pack(">qI", 1_700_000_000_005, 5))
    marker = build_marker_batch(
        EndMarker(ControlType.ABORT, 7), producer_id=9, producer_epoch=0, timestamp=1_700_000_000_009, base_offset=9
    )
    (folder / f"{6:020d}.log").write_bytes(batch(6) + marker)
    (folder / f"{6:020d}.snapshot").write_bytes(encode_snapshot([SnapshotRow(9, 0, 2, 8, 2, 1, -1, -1)]))
    (folder / f"{6:020d}.txnindex").write_bytes(TXN_ENTRY.pack(0, 9, 6, 9, 6))
    (folder / "leader-epoch-checkpoint").write_text("0\n2\n0 0\n1 6\n")
    return folder


def run(*words):
    return CliRunner().invoke(app, ["log", *map(str, words)])


def verify(path, *words):
    result = run("verify", path, "--deep", "--json", *words)
    report = json.loads(result.stdout)
    assert result.exit_code == (1 if report["problems"] else 0), result.stderr
    return report


def only_problem(path):
    (problem,) = verify(path)["problems"]
    return problem["what"]


def test_files_in_order_have_no_problems(folder):
    report = verify(folder.parent)
    assert report["problems"] == []
    assert (report["segments"], report["batches"], report["records"]) == (2, 4, 10)


def test_verify_tells_people_in_words(folder):
    result = run("verify", folder)
    assert result.exit_code == 0
    assert "2 segments, 4 batches, 10 records" in result.stderr


def test_a_flipped_bit_is_found(folder):
    path = folder / f"{0:020d}.log"
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 10] ^= 1
    path.write_bytes(data)
    result = run("verify", folder)
    assert result.exit_code == 1
    assert "byte 0: checksum mismatch (offsets 0 to 2)" in result.stdout
    assert "1 problem" in result.stderr


def test_a_torn_tail_is_found(folder):
    path = folder / f"{6:020d}.log"
    path.write_bytes(path.read_bytes()[:-5])
    assert only_problem(folder).startswith("torn write: ")


@pytest.mark.parametrize("noise", [b"\0" * 100, b"\xff" * 100, b"x" * 16])
def test_noise_behind_the_last_batch_is_found(folder, noise):
    path = folder / f"{6:020d}.log"
    path.write_bytes(path.read_bytes() + noise)
    assert only_problem(folder).startswith(("torn write: ", "not a batch"))


def test_offsets_that_go_back_are_found(folder):
    (folder / f"{6:020d}.log").write_bytes(batch(6) + batch(6))
    assert "offset 6, expected at least 9" in only_problem(folder)


def test_segments_that_overlap_are_found(folder):
    (folder / f"{8:020d}.log").write_bytes(batch(8))
    assert "starts before offset 10" in only_problem(folder)


def test_records_that_cannot_be_read_are_found_only_when_one_looks(folder):
    damaged = bytearray(batch(6))
    damaged[HEADER_BYTES] = 0x7F  # the first record claims another length
    from headrace.records.batch import batch_crc

    damaged[17:21] = pack(">I", batch_crc(damaged))
    (folder / f"{6:020d}.log").write_bytes(damaged)
    assert "records cannot be read" in only_problem(folder)
    assert run("verify", folder).exit_code == 0


@pytest.mark.parametrize(
    ("entries", "what"),
    [
        (pack(">II", 5, 7), "no batch starts at byte 7"),
        (pack(">II", 4, 0), "entry has offset 4, but the batch ends at 2"),
        (pack(">IIB", 2, 0, 1), "1 bytes at the end are no entry"),
        (pack(">IIII", 2, 0, 2, 0), "does not ascend"),
    ],
)
def test_a_wrong_offset_index_is_found(folder, entries, what):
    (folder / f"{0:020d}.index").write_bytes(entries)
    assert any(what in problem["what"] for problem in verify(folder)["problems"])


@pytest.mark.parametrize(
    ("entries", "what"),
    [
        (pack(">qI", 5, 5), "entry has timestamp 5, but the batch has 1700000000005"),
        (pack(">qI", 5, 99), "offset 99 is not in this segment"),
        (pack(">qIqI", 1_700_000_000_002, 2, 1, 5), "does not ascend"),
        (b"x", "1 bytes at the end are no entry"),
    ],
)
def test_a_wrong_time_index_is_found(folder, entries, what):
    (folder / f"{0:020d}.timeindex").write_bytes(entries)
    assert any(what in problem["what"] for problem in verify(folder)["problems"])


def test_the_zeroes_that_kafka_preallocates_are_no_entries(folder):
    index = folder / f"{0:020d}.index"
    index.write_bytes(index.read_bytes() + bytes(800))
    (folder / f"{6:020d}.index").write_bytes(bytes(800))
    (folder / f"{6:020d}.timeindex").write_bytes(bytes(1200))
    assert verify(folder)["problems"] == []


@pytest.mark.parametrize(
    ("name", "data"),
    [
        (f"{6:020d}.snapshot", b"\0\1garbage"),
        (f"{6:020d}.txnindex", b"half an entry"),
        ("leader-epoch-checkpoint", b"0\n2\n1 6\n0 0\n"),
        ("leader-epoch-checkpoint", b"0\n1\nx y\n"),
        ("partition.metadata", b"nonsense"),
    ],
)
def test_damage_to_the_small_files_is_found(folder, name, data):
    (folder / name).write_bytes(data)
    assert len(verify(folder)["problems"]) == 1


def test_an_empty_segment_is_fine(folder):
    (folder / f"{10:020d}.log").write_bytes(b"")
    assert verify(folder)["problems"] == []


def test_verifying_changes_nothing(folder):
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()}
    verify(folder)
    run("dump", folder, "--deep")
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.iterdir()} == before


def test_dump_prints_batches_and_deep_the_records(folder):
    rows = [json.loads(line) for line in run("dump", folder, "--deep", "--json").stdout.splitlines()]
    batches = [row for row in rows if "codec" in row]
    assert [(row["base_offset"], row["records"], row["codec"]) for row in batches] == [
        (0, 3, "none"),
        (3, 3, "zstd"),
        (6, 3, "none"),
        (9, 1, "none"),
    ]
    assert all(row["crc_ok"] for row in batches)
    records = [row for row in rows if "value" in row]
    assert records[4]["key"] == "k1"
    assert records[4]["offset"] == 4
    assert records[4]["headers"] == [["h", "1"]]
    assert [row["marker"] for row in rows if "marker" in row] == ["abort"]


def test_dump_tells_people_the_same(folder):
    text = run("dump", folder / f"{0:020d}.log", "--deep").stdout
    assert "base_offset=3  last_offset=5  records=3" in text
    assert "key=k1" in text


def test_dump_says_where_a_log_is_torn(folder):
    path = folder / f"{0:020d}.log"
    path.write_bytes(path.read_bytes()[:-1])
    assert "!! " in run("dump", path).stdout


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (f"{0:020d}.index", {"offset": 5}),
        (f"{0:020d}.timeindex", {"offset": 5, "timestamp": 1_700_000_000_005}),
        (f"{6:020d}.snapshot", {"producer_id": 9, "last_offset": 8}),
        (f"{6:020d}.txnindex", {"producer_id": 9, "first_offset": 6, "last_offset": 9}),
    ],
)
def test_dump_prints_the_other_files_too(folder, name, expected):
    row = json.loads(run("dump", folder / name, "--json").stdout)
    assert expected.items() <= row.items()


def test_dump_refuses_other_files(folder):
    (folder / "notes.txt").write_text("x")
    assert run("dump", folder / "notes.txt").exit_code == 2


def test_a_folder_without_segments_is_not_found(tmp_path):
    result = run("verify", tmp_path)
    assert result.exit_code == 3
    assert "no segment files" in result.stderr
