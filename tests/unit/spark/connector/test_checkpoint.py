"""What a checkpoint says of a batch, and when a batch with a known number is another one."""

import json
from pathlib import Path

import pytest

from headrace.spark.connector.checkpoint import (
    UNKNOWN,
    CheckpointMismatch,
    CommittedBatch,
    batch_ends,
    check_newest,
    check_repeated,
    newest_number,
)

META = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
OURS = '{"orders": {"1": 7, "0": 42}, "#ids": {"orders": "x"}, "#from": {"orders": {"0": 1}}}'


def planned(checkpoint: Path, number: int, *lines: str) -> None:
    (checkpoint / "offsets").mkdir(parents=True, exist_ok=True)
    (checkpoint / "offsets" / str(number)).write_text("\n".join(("v1", META, *lines)))


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_ends_of_batch_are_read_in_every_form_of_path(tmp_path: Path, form: str) -> None:
    planned(tmp_path, 3, OURS, "-", '{"logOffset":4}', "17", "not JSON")
    ends = json.loads(batch_ends(form.format(tmp_path), 3))
    assert ends == [{"orders": {"0": 42, "1": 7}}, None, {"logOffset": 4}, 17, "not JSON"]


def test_same_ends_are_equal_whatever_is_noted_beside_them(tmp_path: Path) -> None:
    planned(tmp_path, 0, OURS)
    planned(tmp_path, 1, '{"orders":{"0":42,"1":7},"#ids":{}}')
    assert batch_ends(str(tmp_path), 0) == batch_ends(str(tmp_path), 1)


def test_ends_are_unknown_without_readable_checkpoint(tmp_path: Path) -> None:
    for checkpoint in (None, str(tmp_path), "hdfs://nowhere/checkpoint", "s3a://bucket/checkpoint"):
        assert batch_ends(checkpoint, 0) == UNKNOWN


def test_newest_number_of_log(tmp_path: Path) -> None:
    assert newest_number(tmp_path / "offsets") is None
    (tmp_path / "offsets").mkdir()
    assert newest_number(tmp_path / "offsets") == -1
    for name in ("2", "10", ".10.crc", "9.compact", "11.tmp.x", "metadata"):
        (tmp_path / "offsets" / name).touch()
    assert newest_number(tmp_path / "offsets") == 11, "half a file of a later batch is as good as the batch"


COMMITTED = CommittedBatch(5, "[1]")


@pytest.mark.parametrize(("number", "ends"), [(5, "[1]"), (5, UNKNOWN)])
def test_batch_that_is_repeated_is_accepted(number: int, ends: str) -> None:
    check_repeated("the sink", COMMITTED, number, ends)
    check_newest("the sink", COMMITTED, number, ends)
    check_newest("the sink", COMMITTED, 6, "[2]")


@pytest.mark.parametrize(("number", "ends"), [(5, "[2]"), (4, "[1]"), (4, UNKNOWN), (-1, UNKNOWN)])
def test_other_batch_under_known_number_is_refused(number: int, ends: str) -> None:
    for check in (check_repeated, check_newest):
        with pytest.raises(CheckpointMismatch, match=r"has batch 5 of this query up to \[1\].*pipeline reset"):
            check("the sink", COMMITTED, number, ends)


def test_commit_without_known_ends_is_compared_by_number() -> None:
    earlier = CommittedBatch(5, UNKNOWN)
    check_repeated("the sink", earlier, 5, "[2]")
    with pytest.raises(CheckpointMismatch):
        check_repeated("the sink", earlier, 4, "[2]")
