"""The small files of a data directory: Kafka's bytes, and CorruptLog for anything else."""

from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.model.errors import CorruptLog
from headrace.model.ids import TopicPartition
from headrace.storage.directory.checkpoint_files import (
    CLEAN_SHUTDOWN,
    META_PROPERTIES,
    NO_BROKER_EPOCH,
    RECOVERY_POINTS,
    MetaProperties,
    clean_shutdown_epoch,
    clear_clean_shutdown,
    mark_clean_shutdown,
    read_meta_properties,
    read_offsets,
    write_meta_properties,
    write_offsets,
)
from headrace.storage.io.memory_file_system import MemoryFiles

DIRECTORY = "data"
PATH = f"{DIRECTORY}/{RECOVERY_POINTS}"

topics = st.text("abcXYZ019._-", min_size=1, max_size=30)
offsets = st.dictionaries(
    st.builds(TopicPartition, topics, st.integers(0, 2**31 - 1)), st.integers(0, 2**63 - 1), max_size=20
)


def files_with(path: str, data: bytes) -> MemoryFiles:
    files = MemoryFiles()
    files.replace(path, data)
    return files


def test_the_offsets_are_the_bytes_that_kafka_writes() -> None:
    files = MemoryFiles()
    written = {TopicPartition("t", 0): 12, TopicPartition("with.dots_and-dash", 11): 2**63 - 1}
    write_offsets(files, PATH, written)
    assert files.read(PATH) == b"0\n2\nt 0 12\nwith.dots_and-dash 11 9223372036854775807\n"


@given(offsets)
def test_offsets_are_read_as_they_were_written(written: dict[TopicPartition, int]) -> None:
    files = MemoryFiles()
    write_offsets(files, PATH, written)
    assert read_offsets(files, PATH) == written


@pytest.mark.parametrize("data", [None, b"", b"0\n", b"0\n0\n"], ids=["no file", "empty", "version only", "no rows"])
def test_without_rows_there_are_no_offsets(data: bytes | None) -> None:
    files = MemoryFiles() if data is None else files_with(PATH, data)
    assert read_offsets(files, PATH) == {}


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"1\n0\n", id="another version"),
        pytest.param(b"junk", id="no version"),
        pytest.param(b"0\n2\nt 0 1\n", id="a row too few"),
        pytest.param(b"0\n1\nt 0 1\nu 0 1\n", id="a row too many"),
        pytest.param(b"0\n1\nt 0\n", id="a column too few"),
        pytest.param(b"0\n1\nt 0 x\n", id="no number"),
        pytest.param(b"\xff\n", id="no text"),
    ],
)
def test_damaged_offsets_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptLog):
        read_offsets(files_with(PATH, data), PATH)


@given(st.binary(max_size=40))
def test_random_bytes_give_offsets_or_a_corrupt_log(data: bytes) -> None:
    try:
        read_offsets(files_with(PATH, data), PATH)
    except CorruptLog:
        return


def test_a_clean_stop_is_known_until_it_is_cleared() -> None:
    files = MemoryFiles()
    assert clean_shutdown_epoch(files, DIRECTORY) is None
    mark_clean_shutdown(files, DIRECTORY, broker_epoch=17)
    assert files.read(f"{DIRECTORY}/{CLEAN_SHUTDOWN}") == b'{"version":0,"brokerEpoch":17}'
    assert clean_shutdown_epoch(files, DIRECTORY) == 17
    clear_clean_shutdown(files, DIRECTORY)
    clear_clean_shutdown(files, DIRECTORY)
    assert clean_shutdown_epoch(files, DIRECTORY) is None


@pytest.mark.parametrize("data", [b"", b"{}", b"[]", b'{"brokerEpoch":"x"}', b"\xff"])
def test_a_marker_that_tells_no_epoch_is_still_a_clean_stop(data: bytes) -> None:
    files = files_with(f"{DIRECTORY}/{CLEAN_SHUTDOWN}", data)
    assert clean_shutdown_epoch(files, DIRECTORY) == NO_BROKER_EPOCH


META = MetaProperties("my cluster:#1=!\\x", 4, UUID("b03e15fb-609d-46d1-b142-9559905a78bb"))


def test_the_meta_properties_that_kafka_writes_are_read() -> None:
    data = (
        b"#\n#Sun Nov 15 23:24:05 UTC 2026\nnode.id=4\ndirectory.id=sD4V-2CdRtGxQpVZkFp4uw\nversion=1\n"
        b"cluster.id=my cluster\\:\\#1\\=\\!\\\\x\n"
    )
    assert read_meta_properties(files_with(f"{DIRECTORY}/{META_PROPERTIES}", data), DIRECTORY) == META


@given(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1),
    st.integers(0, 2**31 - 1),
    st.uuids(),
)
def test_meta_properties_are_read_as_they_were_written(cluster_id: str, node_id: int, directory_id: UUID) -> None:
    files = MemoryFiles()
    write_meta_properties(files, DIRECTORY, MetaProperties(cluster_id, node_id, directory_id))
    assert read_meta_properties(files, DIRECTORY) == MetaProperties(cluster_id, node_id, directory_id)


def test_a_new_directory_has_no_meta_properties() -> None:
    assert read_meta_properties(MemoryFiles(), DIRECTORY) is None


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"version=0\nbroker.id=1\n", id="the version before"),
        pytest.param(b"version=1\ncluster.id=x\nnode.id=1\n", id="no directory id"),
        pytest.param(b"version=1\ncluster.id=x\nnode.id=a\ndirectory.id=sD4V-2CdRtGxQpVZkFp4uw\n", id="no number"),
        pytest.param(b"version=1\ncluster.id=x\nnode.id=1\ndirectory.id=short\n", id="no id"),
        pytest.param(b"\xff", id="no text"),
    ],
)
def test_damaged_meta_properties_are_corrupt(data: bytes) -> None:
    with pytest.raises(CorruptLog):
        read_meta_properties(files_with(f"{DIRECTORY}/{META_PROPERTIES}", data), DIRECTORY)
