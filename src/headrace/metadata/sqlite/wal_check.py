"""Distinguishes a corrupt SQLite write-ahead log from a torn one by its bytes. Pure; performs no I/O.

SQLite replays a WAL up to the first frame that fails its checksum and drops the rest. That is correct after a
crash during a write: the rest was never committed. It is wrong after a flipped bit: complete commits that were
acknowledged may follow. With synchronous=FULL a commit is on disk before the next one begins, so a
commit frame *followed by more frames of the same generation* was acknowledged.

     0      4       8          12          16      20      24
    ┌──────┬───────┬──────────┬───────────┬───────┬───────┬──────────┐
    │magic │format │page size │checkpoints│salt 1 │salt 2 │checksum 8│   header, 32 bytes
    ├──────┴┬──────┴────────┬─┴─────┬─────┴─┬─────┴─────┬─┴──────────┘
    │page no│size if commit │salt 1 │salt 2 │checksum 8 │ page …          a frame, 24 bytes + page
    └───────┴───────────────┴───────┴───────┴───────────┴───────
The salts identify a generation; frames of earlier ones may follow the end.
"""

from struct import Struct

_HEADER = Struct(">IIIIIIII")
_FRAME = Struct(">IIIIII")
_LARGEST_PAGE = 1  # the header encodes 65536 as 1


def commit_lost_after(recovered_frames: int, wal: bytes) -> bool:
    """Returns whether an acknowledged commit follows the frames that SQLite recovered from this WAL."""
    if len(wal) < _HEADER.size or not any(wal[: _HEADER.size]):
        return False  # never synced, so nothing was acknowledged in it
    if not _header_is_sound(wal):
        return True  # nothing can be recovered without the header, and it is written in one piece
    _, _, page_bytes, _, *salts = _HEADER.unpack_from(wal)[:6]
    frame_bytes = _FRAME.size + (65536 if page_bytes == _LARGEST_PAGE else page_bytes)
    commit_seen = False
    commit_followed = False
    for position in range(_HEADER.size + recovered_frames * frame_bytes, len(wal), frame_bytes):
        if position + _FRAME.size > len(wal):
            break
        _, database_pages, *frame_salts = _FRAME.unpack_from(wal, position)[:4]
        # Frames of a generation are contiguous: a frame of this generation proves that all before it belong to it, even
        # if their salts are corrupt.
        commit_followed |= commit_seen and frame_salts == salts
        commit_seen |= database_pages > 0
    return commit_followed


def _header_is_sound(wal: bytes) -> bool:
    """Verifies SQLite's checksum of the first 24 bytes.

    The last bit of the magic number selects the byte order.
    """
    words = Struct(">6I" if wal[3] & 1 else "<6I").unpack_from(wal)
    first = second = 0
    for even, odd in zip(words[::2], words[1::2], strict=True):
        first = (first + even + second) & 0xFFFFFFFF
        second = (second + odd + first) & 0xFFFFFFFF
    stored = _HEADER.unpack_from(wal)[6:]
    return (first, second) == stored
