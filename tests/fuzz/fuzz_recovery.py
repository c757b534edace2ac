"""Atheris on the files of a partition: whatever happened to them, the folder opens or says why not, and tells no lies.

    python tests/fuzz/fuzz_recovery.py TARGET [CORPUS_DIR] [-runs=N] [-seed=N] …

An input is a list of accidents to a folder that was written properly: bytes changed, cut, added, files lost, doubled,
renamed; then a checkpoint. What comes out of opening and of reading are errors of the storage only, and what is read
has a right checksum and ascending offsets. The other arguments go to libFuzzer.
"""

import logging
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

with atheris.instrument_imports(include=["headrace.storage", "headrace.records"]):
    from headrace.model.errors import HeadraceError, StorageError
    from headrace.records.batch import batch_crc, parse_header, walk
    from headrace.storage.io.memory_file_system import MemoryFiles
    from headrace.storage.log import Log
    from headrace.storage.log_loader import Checkpoint, open_log
from headrace.records.control import ControlType, EndMarker
from headrace.storage.log_types import Producer
from tests.unit.storage.log_kit import CONFIG, append

DIRECTORY = "/data/t-0"
SMALL_SEGMENTS = replace(CONFIG, segment_bytes=400)
OFFSETS = 30
ACCIDENTS_MAX = 6
STRAY_NAMES = ("00000000000000000007.log", "x.log", "00000000000000000003.log.deleted", "0.index", "a.swap", "b.tmp")


def _healthy_folder() -> dict[str, bytes]:
    """Several segments of two epochs, with a transaction that was committed and one that was aborted."""
    files = MemoryFiles()
    log = Log.create(files, DIRECTORY, SMALL_SEGMENTS, now_ms=0)
    for number in range(OFFSETS // 3):
        append(
            log, f"value {number}", "more", epoch=number // 5, producer_id=1, producer_epoch=0, base_sequence=2 * number
        )
    for committed in (True, False):
        batch = {"producer_id": 2, "producer_epoch": 0, "base_sequence": 0 if committed else 1, "transactional": True}
        append(log, "in a transaction", epoch=2, **batch)
        kind = ControlType.COMMIT if committed else ControlType.ABORT
        log.append_marker(EndMarker(kind, 0), Producer(2, 0), 2, 0, uses_tv2=False)
    log.close()
    return {name: files.read(f"{DIRECTORY}/{name}") for name in files.list(DIRECTORY)}


HEALTHY = _healthy_folder()


def folder(data: bytes) -> None:
    provider = atheris.FuzzedDataProvider(data)
    checkpoint = Checkpoint(
        recovery_point=provider.ConsumeIntInRange(-1, OFFSETS + 10),
        log_start_offset=provider.ConsumeIntInRange(-1, OFFSETS + 10),
        clean=provider.ConsumeBool(),
    )
    contents = dict(HEALTHY)
    for _ in range(provider.ConsumeIntInRange(0, ACCIDENTS_MAX)):
        _accident(contents, provider)
    files = MemoryFiles()
    files.make_dir(DIRECTORY)
    for name, content in contents.items():
        files.replace(f"{DIRECTORY}/{name}", content)
    try:
        log = open_log(files, DIRECTORY, SMALL_SEGMENTS, checkpoint, now_ms=0)
    except StorageError:
        return
    _read_everything(log)
    _go_on(log)


def _accident(contents: dict[str, bytes], provider: "atheris.FuzzedDataProvider") -> None:
    names = sorted(contents)
    if not names:
        return
    name = names[provider.ConsumeIntInRange(0, len(names) - 1)]
    content = contents[name]
    at = provider.ConsumeIntInRange(0, len(content))
    match provider.ConsumeIntInRange(0, 6):
        case 0:
            written = provider.ConsumeBytes(provider.ConsumeIntInRange(1, 16))
            contents[name] = content[:at] + written + content[at + len(written) :]
        case 1:
            contents[name] = content[:at]
        case 2:
            contents[name] = content + provider.ConsumeBytes(provider.ConsumeIntInRange(0, 100))
        case 3:
            del contents[name]
        case 4:
            contents[names[provider.ConsumeIntInRange(0, len(names) - 1)]] = content
        case 5:
            contents[STRAY_NAMES[provider.ConsumeIntInRange(0, len(STRAY_NAMES) - 1)]] = content
        case 6 if content:
            flipped = content[at % len(content)] ^ (1 << provider.ConsumeIntInRange(0, 7))
            place = at % len(content)
            contents[name] = content[:place] + bytes((flipped,)) + content[place + 1 :]


def _read_everything(log: Log) -> None:
    """Holes are entered, at their first offset; damaged headers make them any number of offsets wide."""
    offset = max(log.log_start_offset, 0)
    while offset < log.log_end_offset:
        with suppress(HeadraceError):
            piece = log.read(offset, 1, log.log_end_offset)
            if piece is None:
                return
            served = memoryview(piece.read())
            assert served, f"a reader at {offset} is told to come again, for ever"
            for position, header in walk(served):
                batch = served[position : position + header.total_bytes]
                assert batch_crc(batch) == header.crc, f"what is served at {offset} fails its checksum"
                assert header.next_offset > offset, "a reader gets on"
                offset = header.next_offset
            continue
        offset = _behind_hole(log, offset)  # readers may go on there


def _behind_hole(log: Log, offset: int) -> int:
    holes = [*log.holes, *(hole for segment in log.segments for hole in segment.holes)]
    return max(
        [hole.next_offset for hole in holes if hole.base_offset <= offset < hole.next_offset], default=offset + 1
    )


def _go_on(log: Log) -> None:
    """What was opened can be written to and read again."""
    end = log.log_end_offset
    try:
        appended = append(log, "after the accident", epoch=1_000)
    except HeadraceError:
        return
    assert appended.base_offset == end
    piece = log.read(end, 1, log.log_end_offset)
    assert piece is not None
    assert parse_header(piece.read()).base_offset == end


TARGETS = {target.__name__: target for target in (folder,)}


def main() -> None:
    logging.disable(logging.CRITICAL)  # what was cut and what is damaged is told on every run
    atheris.Setup([sys.argv[0], *sys.argv[2:]], TARGETS[sys.argv[1]])
    atheris.Fuzz()


if __name__ == "__main__":
    main()
