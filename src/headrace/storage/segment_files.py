"""The files of a segment that has left its log."""

from contextlib import suppress

from headrace.storage.files import Files
from headrace.storage.segment import Segment, segment_name

DELETED_SUFFIX = ".deleted"  # what an interrupted removal leaves with this suffix is removed at the next opening
INDEX_SUFFIXES = (".index", ".timeindex", ".txnindex")
SEGMENT_SUFFIXES = (".log", *INDEX_SUFFIXES, ".snapshot")
# Of a copy that compaction is about to put in the place of the segment. A start would complete that, and bring the
# segment back in front of a gap. The log goes first: without it, a start removes the others.
SWAP_SUFFIXES = tuple(suffix + ".swap" for suffix in (".log", *INDEX_SUFFIXES))


def set_aside_segment_files(files: Files, segment: Segment) -> list[str]:
    """Give the files of a segment that left its log names that nobody looks for; returns these, to be removed later.

    By their old names they could be removed later than the topic is, and its successor would lose its own.
    """
    stem = f"{segment.directory}/{segment_name(segment.base_offset)}"
    aside = []
    for suffix in (*SEGMENT_SUFFIXES, *SWAP_SUFFIXES):
        if files.exists(stem + suffix):
            files.rename(stem + suffix, stem + suffix + DELETED_SUFFIX)
            aside.append(stem + suffix + DELETED_SUFFIX)
    return aside


def remove_segment_files(files: Files, segment: Segment) -> None:
    """The log file first: without it the others mean nothing, and recovery sweeps them up."""
    stem = f"{segment.directory}/{segment_name(segment.base_offset)}"
    for suffix in SEGMENT_SUFFIXES:
        with suppress(FileNotFoundError):
            files.remove(stem + suffix)
