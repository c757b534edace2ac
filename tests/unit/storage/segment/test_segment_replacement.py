"""What is found after a crash in the middle of a swap, and which side of it the folder is brought to."""

import pytest

from headrace.model.errors import CorruptLog, StorageError
from headrace.storage.io.memory_file_system import MemoryFiles
from headrace.storage.segment.segment_replacement import finish_swaps, refuse_unfinished_swap
from tests.unit.storage.log_kit import batch_of

DIRECTORY = "/data/t-0"


def folder(**contents: bytes) -> MemoryFiles:
    """Files by short names: `n10_log_swap` is 00000000000000000010.log.swap."""
    files = MemoryFiles()
    files.make_dir(DIRECTORY)
    for short, data in contents.items():
        offset, *kinds = short.removeprefix("n").split("_")
        files.replace(f"{DIRECTORY}/{int(offset):020d}.{'.'.join(kinds)}", data)
    return files


def found(files: MemoryFiles) -> dict[str, bytes]:
    contents = {}
    for name in files.list(DIRECTORY):
        offset, _, kinds = name.partition(".")
        contents[f"n{int(offset)}_{kinds.replace('.', '_')}"] = files.read(f"{DIRECTORY}/{name}")
    return contents


def segment_up_to(base: int, end: int) -> bytes:
    return batch_of(["x"] * (end - base), base_offset=base)


def test_a_folder_without_leftovers_stays_as_it_is() -> None:
    contents = {"n0_log": b"old", "n0_index": b"i", "n0_snapshot": b"s"}
    files = folder(**contents)
    finish_swaps(files, DIRECTORY)
    assert found(files) == contents


def test_what_was_only_cleaned_is_removed() -> None:
    files = folder(n0_log=b"old", n0_log_cleaned=b"new", n0_index_cleaned=b"new")
    finish_swaps(files, DIRECTORY)
    assert found(files) == {"n0_log": b"old"}


def test_a_swap_that_had_only_begun_is_undone() -> None:
    files = folder(n0_log=b"old", n0_log_cleaned=b"new", n0_index_swap=b"new", n0_timeindex_swap=b"new")
    finish_swaps(files, DIRECTORY)
    assert found(files) == {"n0_log": b"old"}


def test_a_swap_whose_index_kept_its_name_is_undone() -> None:
    files = folder(n0_log=b"old", n0_log_swap=segment_up_to(0, 5), n0_index_cleaned=b"new")
    finish_swaps(files, DIRECTORY)
    assert found(files) == {"n0_log": b"old"}


def test_a_swap_is_completed_with_everything_that_it_replaces() -> None:
    new = segment_up_to(0, 20)
    files = folder(
        n0_log=b"old",
        n0_index=b"old",
        n0_txnindex=b"old",
        n0_snapshot=b"stays",
        n10_log=b"old",
        n10_timeindex=b"old",
        n10_snapshot=b"goes",
        n20_log=b"next",
        n20_snapshot=b"next",
        n0_log_swap=new,
        n0_index_swap=b"new",
    )
    finish_swaps(files, DIRECTORY)
    assert found(files) == {
        "n0_log": new,
        "n0_index": b"new",
        "n0_snapshot": b"stays",
        "n20_log": b"next",
        "n20_snapshot": b"next",
    }


def test_a_swap_whose_old_segments_are_set_aside_is_completed() -> None:
    new = segment_up_to(0, 20)
    files = folder(
        n0_log_swap=new,
        n0_index=b"new",
        n0_txnindex=b"new",
        n0_log_deleted=b"old",
        n0_txnindex_deleted=b"old",
        n10_log_deleted=b"old",
        n20_log=b"next",
    )
    finish_swaps(files, DIRECTORY)
    assert found(files) == {"n0_log": new, "n0_index": b"new", "n0_txnindex": b"new", "n20_log": b"next"}


def test_a_damaged_swap_is_an_error_and_nothing_is_removed() -> None:
    contents = {"n0_log_swap": b"\0" * 100, "n0_log_deleted": b"old"}
    files = folder(**contents)
    with pytest.raises(CorruptLog):
        finish_swaps(files, DIRECTORY)
    assert found(files) == contents


def test_files_of_others_are_left_alone() -> None:
    files = folder()
    files.replace(f"{DIRECTORY}/partition.metadata", b"x")
    files.replace(f"{DIRECTORY}/leader-epoch-checkpoint", b"x")
    finish_swaps(files, DIRECTORY)
    assert len(files.list(DIRECTORY)) == 2


def test_a_new_round_is_refused_while_a_swap_is_unfinished() -> None:
    refuse_unfinished_swap(folder(n0_log=b"old"), DIRECTORY)
    with pytest.raises(StorageError, match="restart"):
        refuse_unfinished_swap(folder(n0_log_swap=b"new"), DIRECTORY)
