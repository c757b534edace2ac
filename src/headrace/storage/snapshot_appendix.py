"""What headrace writes behind the rows of a producer snapshot, covered by the checksum of the snapshot.

Kafka's reader stops behind the rows and passes over the rest; snapshots that Kafka wrote have none.

    uint32  0x48524150, "HRAP"
    int32   number of indexes
    indexes int64   base offset of a segment
            int32   number of entries in its .txnindex below the offset of the snapshot
            uint32  crc32c of these entries
    int32   number of idle producers
    idle    int64   producer id
            int64   how long it had appended nothing, in ms

A segment that is not listed has no aborted transactions: so a missing index is told from one that never was.
"""

from collections.abc import Mapping
from struct import Struct, error
from typing import NamedTuple

from headrace.model.errors import CorruptLog
from headrace.storage.txn_index import IndexSum

MAGIC = 0x48524150
_HEAD = Struct(">Ii")
_COUNT = Struct(">i")
_INDEX = Struct(">qiI")
_IDLE = Struct(">qq")


class Appendix(NamedTuple):
    index_sums: Mapping[int, IndexSum]  # by the base offset of the segment
    idle_ms: Mapping[int, int]  # by producer id


def encode_appendix(appendix: Appendix) -> bytes:
    indexes = [_INDEX.pack(base, *found) for base, found in appendix.index_sums.items()]
    idle = [_IDLE.pack(*one) for one in appendix.idle_ms.items()]
    return b"".join([_HEAD.pack(MAGIC, len(indexes)), *indexes, _COUNT.pack(len(idle)), *idle])


def decode_appendix(data: memoryview) -> Appendix | None:
    """None if there is none."""
    if not len(data):
        return None
    try:
        magic, count = _HEAD.unpack_from(data)
        end_of_indexes = _HEAD.size + count * _INDEX.size
        indexes = list(_INDEX.iter_unpack(data[_HEAD.size : end_of_indexes]))
        (idle_count,) = _COUNT.unpack_from(data, end_of_indexes)
        idle = dict(_IDLE.iter_unpack(data[end_of_indexes + _COUNT.size :]))
    except error as malformed:
        raise CorruptLog(f"a producer snapshot has a malformed appendix: {malformed}") from malformed
    if magic != MAGIC or len(indexes) != count or len(idle) != idle_count:
        raise CorruptLog(f"a producer snapshot has an unknown appendix of {len(data)} bytes")
    return Appendix({base: IndexSum(entries, crc) for base, entries, crc in indexes}, idle)
