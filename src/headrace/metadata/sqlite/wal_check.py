"""Telling a damaged SQLite write-ahead log from a torn one, from its bytes alone.

SQLite replays a WAL up to the first frame that fails its checksum and drops the rest. After a crash in the
middle of a write that is right: the rest was never committed. After a flipped bit it is not: whole commits
that were acknowledged may follow. With synchronous=FULL a commit is on disk before the next one begins, so a
commit frame *with more frames of the same generation behind it* was acknowledged.

     0      4       8          12          16      20      24
    ┌──────┬───────┬──────────┬───────────┬───────┬───────┬──────────┐
    │magic │format │page size │checkpoints│salt 1 │salt 2 │checksum 8│   header, 32 bytes
    ├──────┴┬──────┴────────┬─┴─────┬─────┴─┬─────┴─────┬─┴──────────┘
    │page no│size if commit │salt 1 │salt 2 │checksum 8 │ page …          a frame, 24 bytes + page
    └───────┴───────────────┴───────┴───────┴───────────┴───────
A generation is known by its salts; frames of earlier ones may lie behind the end.
"""

from struct import Struct

_HEADER = Struct(">IIIIIIII")
_FRAME = Struct(">IIIIII")
_LARGEST_PAGE = 1  # how the header writes 65536


def commit_lost_after(recovered_frames: int, wal: bytes) -> bool:
    """Whether an acknowledged commit lies behind the frames that SQLite recovered from this WAL."""
    if len(wal) < _HEADER.size or not any(wal[: _HEADER.size]):
        return False  # never synced, so nothing was acknowledged in it
    if not _header_is_sound(wal):
        return True  # nothing can be recovered without it, and it is written in one piece
    _, _, page_bytes, _, *salts = _HEADER.unpack_from(wal)[:6]
    frame_bytes = _FRAME.size + (65536 if page_bytes == _LARGEST_PAGE else page_bytes)
    commit_seen = False
    commit_followed = False
    for position in range(_HEADER.size + recovered_frames * frame_bytes, len(wal), frame_bytes):
        if position + _FRAME.size > len(wal):
            break
        _, database_pages, *frame_salts = _FRAME.unpack_from(wal, position)[:4]
        # Frames of a generation lie side by side: one of ours further on means that all before it were ours,
        # whatever their damaged salts say.
        commit_followed |= commit_seen and frame_salts == salts
        commit_seen |= database_pages > 0
    return commit_followed


def _header_is_sound(wal: bytes) -> bool:
    """SQLite's running checksum of the first 24 bytes, in the byte order that the magic's last bit names."""
    words = Struct(">6I" if wal[3] & 1 else "<6I").unpack_from(wal)
    first = second = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    stored = _HEADER.unpack_from(wal)[6:]
    return (first, second) == stored
