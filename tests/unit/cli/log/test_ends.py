"""`headrace log ends` prints where the logs of stopped brokers end, and which replicas are behind another one."""

import json
from uuid import UUID

import pytest
from typer.testing import CliRunner

from headrace.cli.app import app
from headrace.config.values import LogConfig
from headrace.storage.directory.checkpoint_files import MetaProperties, write_meta_properties
from headrace.storage.directory.partition_metadata_file import write_topic_id
from headrace.storage.epoch.leader_epoch_cache import FILE_NAME as EPOCHS_FILE
from headrace.storage.io.file_system import OsFileSystem
from headrace.storage.log import Log
from tests.unit.storage.log_kit import append

FILES = OsFileSystem()


def run(*words):
    return CliRunner().invoke(app, ["log", "ends", *map(str, words)])


def data_dir(path, node, **logs):
    """Epochs of single records by partition, for topics of one id; `topic_id` may be another one."""
    topic_id = logs.pop("topic_id", 1)
    path.mkdir()
    write_meta_properties(FILES, str(path), MetaProperties("c", node, UUID(int=node)))
    for name, epochs in logs.items():
        folder = path / name.replace("_", "-")
        folder.mkdir()
        write_topic_id(FILES, str(folder), UUID(int=topic_id))
        log = Log.create(FILES, str(folder), LogConfig(), now_ms=0)
        for epoch in epochs:
            append(log, "x", epoch=epoch)
        log.close()
    return path


@pytest.fixture
def nodes(tmp_path):
    return [
        data_dir(tmp_path / "1", 1, t_0=[1, 1, 2], t_1=[1, 1]),
        data_dir(tmp_path / "2", 2, t_0=[1, 1, 1, 1, 1], t_1=[1]),
        data_dir(tmp_path / "3", 3, t_0=[1, 1, 2], t_1=[]),
    ]


def rows(*paths):
    result = run("--json", *paths)
    assert result.exit_code == 0, result.stderr
    return [json.loads(line) for line in result.stdout.splitlines()]


def ends(*paths):
    return [
        (f"{row['topic']}-{row['partition']}", row["node"], row["leader_epoch"], row["log_end_offset"])
        for row in rows(*paths)
    ]


ALL = [
    ("t-0", 1, 2, 3),
    ("t-0", 2, 1, 5),
    ("t-0", 3, 2, 3),
    ("t-1", 1, 1, 2),
    ("t-1", 2, 1, 1),
    ("t-1", 3, -1, 0),
]


def test_every_replica_has_its_leader_epoch_and_log_end(nodes):
    assert ends(*nodes) == ALL


def test_higher_epoch_and_then_higher_offset_is_ahead(nodes):
    lines = [line.split() for line in run(*nodes).stdout.splitlines() if line.lstrip().startswith("t-")]
    behind = {(line[0], int(line[2])) for line in lines if line[1] == "behind"}
    assert len(lines) == len(ALL)
    assert behind == {("t-0", 2), ("t-1", 2), ("t-1", 3)}


def test_lines_of_other_hosts_are_compared(nodes, tmp_path):
    saved = []
    for node in nodes:
        saved.append(tmp_path / f"{node.name}.json")
        saved[-1].write_text(run("--json", node).stdout)
    assert ends(*saved) == ALL
    assert run(*saved).stdout == run(*nodes).stdout


def test_replica_of_an_earlier_topic_is_not_compared(nodes, tmp_path):
    later = data_dir(tmp_path / "4", 4, t_1=[7, 7, 7], topic_id=2)
    shown = run(nodes[0], later).stdout
    assert "behind" not in shown.splitlines()[-1] + shown.splitlines()[-2]


def test_corrupt_end_and_directories_set_aside_do_not_count(nodes):
    (segment,) = (nodes[0] / "t-0").glob("*.log")
    data = bytearray(segment.read_bytes())
    data[len(data.rstrip(b"\0")) - 2] ^= 1
    segment.write_bytes(data)
    (nodes[0] / "t-1").rename(nodes[0] / f"t-1.{'0' * 32}-stray")
    assert ends(nodes[0]) == [("t-0", 1, 1, 2)]


@pytest.mark.parametrize("row", ["7 2", "3 1"], ids=["flipped digit", "left by a truncation"])
def test_epoch_that_no_batch_confirms_does_not_count(nodes, row):
    """The replica would seem to be ahead of the one that has every acknowledged record."""
    path = nodes[1] / "t-0" / EPOCHS_FILE
    path.write_text(f"0\n2\n1 0\n{row}\n")
    assert ends(nodes[1])[0] == ("t-0", 2, 1, 5)
    shown = [line.split() for line in run(*nodes).stdout.splitlines() if line.lstrip().startswith("t-0")]
    assert [int(line[2]) for line in shown if line[1] == "behind"] == [2]


def test_epoch_whose_batches_are_compacted_counts(nodes):
    """The active segment begins at offset 9; nothing is left of the records from offset 5 on, which epoch 4 wrote."""
    folder = nodes[1] / "t-0"
    (folder / f"{9:020}.log").touch()
    (folder / EPOCHS_FILE).write_text("0\n2\n1 0\n4 5\n")
    assert ends(nodes[1])[0] == ("t-0", 2, 4, 9)


def test_path_that_is_no_data_directory_is_rejected(nodes, tmp_path):
    assert run(tmp_path / "absent").exit_code == 3
    other = tmp_path / "other"
    other.write_text('{"topic": "t"}\n')
    result = run(other)
    assert result.exit_code == 1
    assert "neither a data directory" in result.stderr
